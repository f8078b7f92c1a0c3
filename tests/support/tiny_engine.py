"""The engine on the tiny llama: a model home, an in-process engine, and `python -m support.tiny_engine` as a process.

Owns how tests start the real thing without downloading a model. Settings of the process are the engine's own ENGINE_*
variables and SOLOIST_HOME, which must point to a home that make_home wrote.
"""

import dataclasses
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contracts.generate import Event, Failed, Finished, GenerateRequest, Sampling, TokenId
from engine.engine import Engine
from engine.fetch.packaged import describe_weights
from engine.model_home import folder_path
from engine.registry import PackageSource
from engine.server.process import run_engine
from engine.settings import EngineConfig, EngineSettings, read_config
from engine.spec import ModelSpec
from engine.startup import load_engine, plan_engine
from engine.weights.gguf import read_header
from support.tiny_llama import TINY_LLAMA, random_tensors, registered, write_gguf

# A window that several chunks fit in; the rest as the weights' own tests have it.
TINY = dataclasses.replace(TINY_LLAMA, name="tiny-engine", context_limit=1024)
_SOURCE = PackageSource("none", "0", 0, "none", 0, "0" * 64, "Apache-2.0")
EVENT_TIMEOUT_S = 60.0


def make_home(home: Path, spec: ModelSpec = TINY, **tensor_options: Any) -> Path:
    """Write the model folder of spec into home; tensor_options go to random_tensors."""
    folder = folder_path(home, spec.name)
    folder.mkdir(parents=True)
    weights = folder / "weights.gguf"
    write_gguf(weights, spec, random_tensors(spec, **tensor_options))
    describe_weights(registered(spec, _SOURCE), folder, read_header(weights))
    return home


def make_config(home: Path, **settings: Any) -> EngineConfig:
    """A configuration without the environment."""
    return EngineConfig(EngineSettings(model=TINY.name, threads=1, **settings), home, None)


def start_engine(home: Path, spec: ModelSpec = TINY, **settings: Any) -> Engine:
    """A ready engine; close() it."""
    return load_engine(plan_engine(make_config(home, **settings), spec), lambda _: None, lambda: None)


def make_request(ids: list[int], max_new_tokens: int, request_id: str = "r", **fields: Any) -> GenerateRequest:
    """A request; a `sampling` of keyword arguments may be given as a dict."""
    if isinstance(fields.get("sampling"), dict):
        fields["sampling"] = Sampling(**fields["sampling"])
    return GenerateRequest(
        request_id=request_id, token_ids=[TokenId(i) for i in ids], max_new_tokens=max_new_tokens, **fields
    )


class Collector:
    """A sink that keeps a request's events."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Event] = queue.Queue()
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self._queue.put(event)

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, to the terminal one."""
        while True:
            event = self._queue.get(timeout=EVENT_TIMEOUT_S)
            self.events.append(event)
            yield event
            if isinstance(event, Finished | Failed):
                return

    def wait_for(self, kind: type[Event]) -> Event:  # type: ignore[valid-type]
        """The next event of a kind."""
        for event in self:
            if isinstance(event, kind):
                return event
        raise AssertionError(f"the stream ended without {kind.__name__}")

    def is_quiet(self) -> bool:
        """Whether nothing more came."""
        return self._queue.empty()


if __name__ == "__main__":
    sys.exit(run_engine(read_config(), TINY))
