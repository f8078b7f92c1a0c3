"""The tiny engine behind a real socket in the test's process. Owns the order in which the parts start and stop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.observability import start_telemetry
from engine import VERSION
from engine.engine import Engine
from engine.server.app import create_app
from engine.server.lifecycle import Lifecycle
from support.server_thread import ServerThread
from support.tiny_engine import start_engine

MAX_BODY_BYTES = 20_000


@dataclass
class Served:
    """A running server and what is behind it."""

    port: int
    lifecycle: Lifecycle
    engine: Engine


Serve = Callable[..., Served]


@contextmanager
def serve_tiny(home: Path, *, ready: bool = True, otlp_endpoint: str | None = None) -> Iterator[Served]:
    """Serve the tiny model of home; with ready=False the lifecycle stays loading until the test says otherwise."""
    telemetry = start_telemetry("soloist-engine", VERSION, otlp_endpoint)
    lifecycle = Lifecycle()
    engine = start_engine(home)
    if ready:
        lifecycle.set_ready(engine)
    with ServerThread(create_app(lifecycle, telemetry, max_body_bytes=MAX_BODY_BYTES)) as server:
        yield Served(server.port, lifecycle, engine)
    assert engine.close(10.0), "the worker did not stop"
    telemetry.shutdown()
