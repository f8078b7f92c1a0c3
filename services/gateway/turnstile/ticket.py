"""A place in the queue. Owned by the request that waits; leaves the queue when its context ends."""

from types import TracebackType

from gateway.turnstile.lease import Lease


class Ticket:
    """A queued request; position 0 means it holds the lane, 1 means next."""

    position: int
    estimate_s: float

    async def wait(self, timeout_s: float | None) -> Lease | None:
        """The lease once granted, None when timeout_s passed first.

        Raises: QueueUnavailable when the store was away for too long; ShuttingDown when the turnstile stops.
        """
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the queue, or give the lane back when it was granted and not released; idempotent, never raises."""
        raise NotImplementedError

    async def __aenter__(self) -> "Ticket":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()
