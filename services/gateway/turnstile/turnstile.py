"""The turnstile: tickets in, leases out, fair between agents. Owns the queue in Redis and this gateway's part of it."""

from collections.abc import Sequence

from contracts.generate import Fence
from contracts.observability import Telemetry
from gateway.turnstile.model import QueueSnapshot, TicketEntry, TurnstileLimits
from gateway.turnstile.ticket import Ticket


class Turnstile:
    """One gateway's door to the lanes; start() once, stop() once."""

    def __init__(self, redis_url: str, limits: TurnstileLimits, lanes: Sequence[str], telemetry: Telemetry) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Start heartbeat and wake-ups; returns within about a second even when the store is away."""

    async def stop(self) -> None:
        """Give back every lease and ticket, then close the connections."""

    @property
    def healthy(self) -> bool:
        """Whether the store answered the last call."""
        return False

    async def enqueue(self, entry: TicketEntry) -> Ticket:
        """Queue one request; on a free lane the ticket comes back granted, in one round trip.

        Raises: QueueFull and QueueUnavailable with retry_after_s; ShuttingDown after stop().
        """
        raise NotImplementedError

    async def snapshot(self) -> QueueSnapshot:
        """Lanes and waiting tickets. Raises: QueueUnavailable."""
        raise NotImplementedError

    async def raise_fence(self, fence: Fence) -> None:
        """Make every later fence higher than this one (the last an engine saw)."""
        raise NotImplementedError
