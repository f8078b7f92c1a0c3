"""One engine process: listener first, then the model in a thread beside it, signals, exit code. Owns their order.

The listener answers `/health/ready` with progress while the model loads. SIGTERM and SIGINT: readiness false, running
and waiting requests end as shutting_down with their state kept, then exit 0; a second signal cuts connections.
"""

import logging
import signal
import socket
import sys
import threading
from types import FrameType

import uvicorn

from contracts.errors import SetupError
from contracts.observability import Telemetry, start_telemetry
from engine import VERSION
from engine.server.app import create_app
from engine.server.lifecycle import Lifecycle, Stopped
from engine.settings import EngineConfig, EngineSettings
from engine.spec import ModelSpec
from engine.startup import EnginePlan, load_engine, plan_engine

EXIT_STOPPED, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
_LOG = logging.getLogger("engine")
_CLOSE_TIMEOUT_S = 5
_KEEP_ALIVE_S = 75
_BACKLOG = 128


def run_engine(config: EngineConfig, spec: ModelSpec) -> int:
    """Serve spec until told to stop; returns the exit code. spec is the model that the settings name.

    Effects: sets up logging; says why on standard error, in one line, when it refuses.
    """
    settings = config.settings
    _start_logging(settings.log_level)
    try:
        plan = plan_engine(config, spec)
    except SetupError as error:
        return refuse(error)
    try:
        listener = _open_listener(settings.host, settings.port)
    except OSError as error:
        sys.stderr.write(f"engine: cannot listen on {settings.host}:{settings.port}: {error.strerror or error}\n")
        return EXIT_FAILED
    telemetry = start_telemetry("soloist-engine", VERSION, config.otlp_endpoint)
    try:
        return _Process(plan, settings, telemetry).run(listener)
    finally:
        telemetry.shutdown()


def refuse(error: SetupError) -> int:
    """Say why on standard error; returns the exit code."""
    sys.stderr.write(f"engine: {error.message}\n")
    return EXIT_REFUSED


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


class _Process:
    def __init__(self, plan: EnginePlan, settings: EngineSettings, telemetry: Telemetry) -> None:
        self._plan = plan
        self._lifecycle = Lifecycle()
        self._exit_code = EXIT_STOPPED
        app = create_app(self._lifecycle, telemetry, max_body_bytes=settings.max_body_bytes)
        config = uvicorn.Config(
            app, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False, log_config=None,
            server_header=False, timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
        )  # fmt: skip
        self._server = _Server(config, self._lifecycle)

    def run(self, listener: socket.socket) -> int:
        host, port = listener.getsockname()[:2]
        _LOG.info("listening on http://%s:%d, loading %s", host, port, self._plan.spec.name)
        loader = threading.Thread(target=self._load, name="engine-loader", daemon=True)
        loader.start()
        self._server.run([listener])
        self._lifecycle.drain()
        loader.join(_CLOSE_TIMEOUT_S)
        if not self._lifecycle.close(_CLOSE_TIMEOUT_S):
            _LOG.error("the worker did not stop within %d s", _CLOSE_TIMEOUT_S)
        return self._exit_code

    def _load(self) -> None:
        try:
            engine = load_engine(self._plan, self._lifecycle.set_progress, self._lose_device)
        except Stopped:
            return
        except SetupError as error:
            self._fail(EXIT_REFUSED, error.message)
            return
        except Exception as error:  # noqa: BLE001 the loader's edge: the process must end and say why
            _LOG.error("loading failed", exc_info=error)
            self._fail(EXIT_FAILED, f"loading failed: {error}")
            return
        self._lifecycle.set_ready(engine)
        _LOG.info("ready: %s, executor %s", self._plan.spec.name, engine.info().executor)

    def _lose_device(self) -> None:
        self._fail(EXIT_FAILED, "the device is lost")

    def _fail(self, exit_code: int, message: str) -> None:
        _LOG.error("%s", message)
        self._exit_code = exit_code
        self._lifecycle.fail(message)
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn that tells the lifecycle of a signal and does not die of it."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        _LOG.info("%s: stopping", signal.Signals(sig).name)
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        # Not here: the handler may interrupt a thread that holds the engine's lock.
        threading.Thread(target=self._lifecycle.drain, name="engine-drain", daemon=True).start()
