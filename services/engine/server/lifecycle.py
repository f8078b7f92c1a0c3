"""Where the process stands: loading, ready, draining or failed. Owns what routes, loader and signals share of it."""

import threading

from contracts.engine_info import Readiness
from contracts.errors import EngineLoading, ServiceError, ShuttingDown
from engine.engine import Engine

_RETRY_S = 2.0


class Stopped(Exception):
    """Raised into the loader when the process no longer wants an engine."""


class Lifecycle:
    """loading -> ready -> draining, or failed at any time; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readiness = Readiness("loading", 0.0)
        self._engine: Engine | None = None

    @property
    def readiness(self) -> Readiness:
        """What `/health/ready` says."""
        return self._readiness

    def require_engine(self) -> Engine:
        """The engine, when it takes requests.

        Raises: EngineLoading, ShuttingDown; ServiceError when the start failed.
        """
        readiness = self._readiness
        if readiness.status == "draining":
            raise ShuttingDown("the engine is shutting down", retry_after_s=_RETRY_S)
        if readiness.status == "failed":
            raise ServiceError(f"the engine failed: {readiness.message}")
        if self._engine is None or readiness.status == "loading":
            raise EngineLoading(f"the engine is loading, {readiness.progress:.0%} done", retry_after_s=_RETRY_S)
        return self._engine

    def set_progress(self, progress: float) -> None:
        """Report the share of start-up done.

        Raises: Stopped when a drain began meanwhile.
        """
        with self._lock:
            if self._readiness.status != "loading":
                raise Stopped
            self._readiness = Readiness("loading", round(progress, 4))

    def set_ready(self, engine: Engine) -> None:
        """The engine takes requests from now on; if a drain began meanwhile it is drained at once."""
        with self._lock:
            self._engine = engine
            if self._readiness.status == "loading":
                self._readiness = Readiness("ready", 1.0)
                return
        engine.drain()

    def fail(self, message: str) -> None:
        """The engine will never be ready again."""
        with self._lock:
            self._readiness = Readiness("failed", self._readiness.progress, message)

    def drain(self) -> None:
        """Take no more requests; running ones end as shutting_down, their state kept."""
        with self._lock:
            if self._readiness.status == "draining":
                return
            self._readiness = Readiness("draining", self._readiness.progress)
            engine = self._engine
        if engine is not None:
            engine.drain()

    def close(self, timeout_s: float) -> bool:
        """Drain and wait for the worker; False when it did not end in time."""
        self.drain()
        return self._engine is None or self._engine.close(timeout_s)
