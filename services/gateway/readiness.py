"""Whether this gateway can serve, and why not: model text on disk, engine up with the same tokenizer, queue reachable.

Owns the watch over engine and model folder. Hands on the ready model or the reason in words. Does not route requests
and never blocks on a model that is still being fetched.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

from contracts.engine_info import EngineInfo
from contracts.errors import EngineLoading, EngineLost, ServiceError
from gateway.clients.engine import EngineClient
from gateway.text.model_text import ModelText, load_model_text

_LOG = logging.getLogger("gateway.readiness")
_READY_POLL_S = 2.0
_WAITING_POLL_S = 0.5
_LOADING_RETRY_S = 5.0
_LOST_RETRY_S = 3.0


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """What a request needs to run: the text side and what the engine said of itself."""

    text: ModelText
    info: EngineInfo


class Readiness:
    """Watches one model folder and one engine; start() once, stop() once."""

    def __init__(self, home: Path, model: str, engine: EngineClient, text: ModelText | None) -> None:
        self._home = home
        self._name = model
        self._engine = engine
        self._text = text
        self._info: EngineInfo | None = None
        self._blocker: ServiceError | None = EngineLoading("the gateway is starting", retry_after_s=_LOADING_RETRY_S)
        self._was_ready = False
        self._watch: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()

    def start(self) -> None:
        """Watch in the background; text that was not given is loaded once its folder is there."""
        self._watch = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    @property
    def blocker(self) -> ServiceError | None:
        """Why no request can run now, None when one can."""
        return self._blocker

    @property
    def last_info(self) -> EngineInfo | None:
        """What the engine last said of itself, also while it is away."""
        return self._info

    async def require(self) -> ReadyModel:
        """The ready model; an engine that seems away is asked once more first.

        Raises: EngineLost or EngineLoading with retry_after_s.
        """
        if self._blocker is not None:
            await self.probe()
        if self._blocker is not None:
            # A fresh one: an exception that is raised twice collects the traces of both requests.
            raise type(self._blocker)(self._blocker.message, retry_after_s=self._blocker.retry_after_s)
        assert self._text is not None and self._info is not None, "ready without text or info"
        return ReadyModel(self._text, self._info)

    async def probe(self) -> None:
        """Ask the engine now; callers at the same time share one question."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())
        await asyncio.shield(self._probing)

    async def wait(self, timeout_s: float) -> bool:
        """Whether the model was ready within timeout_s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        return self._ready.is_set()

    def note_lost(self, error: ServiceError) -> None:
        """A request found the engine gone: ask again at once instead of at the next round."""
        self._set(EngineLost(error.message, retry_after_s=_LOST_RETRY_S))
        self._changed.set()

    async def _run(self) -> None:
        while True:
            await self.probe()
            self._changed.clear()
            pause_s = _READY_POLL_S if self._blocker is None else _WAITING_POLL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def _probe(self) -> None:
        try:
            if self._text is None:
                self._text = await asyncio.to_thread(load_model_text, self._home, self._name)
            state = await self._engine.fetch_readiness()
            if state.status != "ready":
                reason = f": {state.message}" if state.message else ""
                raise EngineLoading(f"the engine is {state.status}{reason} ({state.progress:.0%} done)")
            info = await self._engine.fetch_info()
        except EngineLost as error:
            self._set(EngineLost(error.message, retry_after_s=_LOST_RETRY_S))
            return
        except ServiceError as error:
            self._set(EngineLoading(error.message, retry_after_s=_LOADING_RETRY_S))
            return
        self._info = info
        self._set(self._find_mismatch(info))

    def _find_mismatch(self, info: EngineInfo) -> ServiceError | None:
        assert self._text is not None, "loaded before the engine is asked"
        ours, theirs = self._text.tokenizer.sha256, info.tokenizer_sha256
        if ours == theirs:
            return None
        engine_side = f"the engine runs {info.model_id} with tokenizer {theirs[:12]}"
        return EngineLoading(
            f"{engine_side}, the gateway has {self._name} with tokenizer {ours[:12]}", retry_after_s=_LOADING_RETRY_S
        )

    def _set(self, blocker: ServiceError | None) -> None:
        before, self._blocker = self._blocker, blocker
        if blocker is None:
            self._ready.set()
            self._was_ready = True
        else:
            self._ready.clear()
        if blocker is None and before is not None:
            _LOG.info("ready: model %s, engine %s", self._name, self._engine.url)
        elif blocker is not None and (before is None or before.message != blocker.message):
            # Until it was ready once, waiting for the engine is a normal part of starting.
            _LOG.log(logging.WARNING if self._was_ready else logging.INFO, "not ready: %s", blocker.message)
