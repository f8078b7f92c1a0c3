"""The gateway's way out: no new requests, running ones finish, late ones are told. Owns the set of running requests.

Receives one begin() when the process is asked to stop. Does not stop the server; __main__ does once finish() returns.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.errors import ShuttingDown
from gateway.interrupt import Interrupt

RETRY_AFTER_S = 5.0
_FAREWELL_S = 1.5


class Drain:
    """Running requests and whether new ones are taken."""

    def __init__(self) -> None:
        self.draining = False
        self._running: set[Interrupt] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Take no more requests; readiness turns false with this."""
        self.draining = True

    def check(self) -> None:
        """Raises: ShuttingDown once begin() was called."""
        if self.draining:
            raise ShuttingDown("the gateway is shutting down", retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def running(self, interrupt: Interrupt) -> Iterator[None]:
        """Count one request as running; its interrupt fires when the drain limit passes."""
        self._running.add(interrupt)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(interrupt)
            if not self._running:
                self._idle.set()

    async def finish(self, limit_s: float) -> None:
        """Wait for the running requests, then end those left with ShuttingDown."""
        if await self._wait_idle(limit_s):
            return
        for interrupt in tuple(self._running):
            interrupt.fire(ShuttingDown("the gateway is shutting down", retry_after_s=RETRY_AFTER_S))
        await self._wait_idle(_FAREWELL_S)

    async def _wait_idle(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
