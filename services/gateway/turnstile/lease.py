"""A lease on the lane: fence, lane and the signal that it was lost. Owned by the request that runs.

Does not talk to the store: the turnstile's heartbeat keeps it alive and release() hands it back through a callback.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from contracts.generate import Fence
from gateway.turnstile.model import LostReason


class Lease:
    """The right to run on one lane, kept alive by the turnstile's heartbeat until release().

    lost is set when another ticket holds the lane ("superseded": the engine refuses this fence from now on), or when
    the store was away for longer than the lease's TTL ("unreachable": the engine's fence decides who runs).
    """

    def __init__(self, fence: Fence, lane: str, give_back: "Callable[[Lease, float], Awaitable[None]]") -> None:
        self.fence = fence
        self.lane = lane
        self.lost = asyncio.Event()
        self.lost_reason: LostReason | None = None
        self._give_back = give_back
        self._granted_s = time.monotonic()
        self._released = False

    @property
    def released(self) -> bool:
        """Whether release() was called."""
        return self._released

    @property
    def held_s(self) -> float:
        """Seconds since the grant."""
        return time.monotonic() - self._granted_s

    async def release(self, measured_cost_s: float) -> None:
        """Give the lane back and settle the flow with what the request really cost; idempotent, never raises."""
        if self._released:
            return
        self._released = True
        await self._give_back(self, measured_cost_s)

    def lose(self, reason: LostReason) -> bool:
        """Signal the loss once; False when it was signalled before."""
        if self.lost.is_set():
            return False
        self.lost_reason = reason
        self.lost.set()
        return True
