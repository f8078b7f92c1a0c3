"""Ending a running request from outside: client gone, lease lost, shutdown. Owns the turn from a signal to an error.

Works as asyncio.timeout does, with the error of whoever fired first in place of TimeoutError. Does not decide what
becomes of the request.
"""

import asyncio
from types import TracebackType


class ClientGone(Exception):
    """The client closed its connection or stopped reading; nobody is left to answer, and it is not an error."""


class Interrupt:
    """A block of one task that fire() ends with its error; later signals, and those after the block, do nothing."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancels_before = 0
        self.error: Exception | None = None

    def fire(self, error: Exception) -> None:
        """End the block at its next await; callable from any callback of the loop."""
        if self._task is not None and self.error is None:
            self.error = error
            self._task.cancel()

    async def __aenter__(self) -> "Interrupt":
        assert self._task is None, "one block per interrupt"
        self._task = asyncio.current_task()
        assert self._task is not None, "only inside a task"
        self._cancels_before = self._task.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None, "entered before"
        if self.error is None:
            return
        only_ours = task.uncancel() <= self._cancels_before
        if only_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self.error from None
