"""A place in the queue. Owned by the request that waits; leaves the queue when its context ends.

Receives its grant or its failure from the turnstile, hands on a Lease. Does not talk to the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from contracts.errors import ServiceError
from gateway.turnstile.lease import Lease
from gateway.turnstile.model import TicketEntry


class Ticket:
    """A queued request; position 0 means it holds the lane, 1 means next. Position and estimate are renewed while it
    waits, the first ones are upper bounds."""

    def __init__(self, ticket_id: str, entry: TicketEntry, leave: "Callable[[Ticket], Awaitable[None]]") -> None:
        self.ticket_id = ticket_id
        self.entry = entry
        self.position = 1
        self.estimate_s = 0.0
        self.seq = 0  # 0 until the store gave it a number
        self.lease: Lease | None = None
        self._leave = leave
        self._queued_s = time.monotonic()
        self._outcome: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._left = False

    @property
    def waited_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._queued_s

    @property
    def is_waiting(self) -> bool:
        """Neither granted, failed nor left."""
        return not self._outcome.done() and not self._left

    async def wait(self, timeout_s: float | None) -> Lease | None:
        """The lease once granted, None when timeout_s passed first.

        Raises: QueueUnavailable when the store was away for too long; ShuttingDown when the turnstile stops.
        """
        assert self._outcome.done() or not self._left, "a ticket that left cannot wait"
        if not self._outcome.done():
            await asyncio.wait((self._outcome,), timeout=timeout_s)
        return self._outcome.result() if self._outcome.done() else None

    async def leave(self) -> None:
        """Leave the queue, or give the lane back when it was granted and not released; idempotent, never raises."""
        if self._left:
            return
        self._left = True
        await self._leave(self)

    def grant(self, lease: Lease) -> None:
        """Wake the waiter with its lease."""
        self.position, self.estimate_s, self.lease = 0, 0.0, lease
        self._outcome.set_result(lease)

    def fail(self, error: ServiceError) -> None:
        """Wake the waiter with an error."""
        self._outcome.set_exception(error)
        self._outcome.exception()  # nobody may be waiting: a failure nobody asks for is no warning

    async def __aenter__(self) -> "Ticket":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()
