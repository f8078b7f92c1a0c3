"""A lease on the lane: fence, lane and the signal that it was lost. Owned by the request that runs."""

import asyncio

from contracts.generate import Fence


class Lease:
    """The right to run on one lane, kept alive by the turnstile's heartbeat until release().

    lost is set when another ticket holds the lane, or when the store was unreachable for longer than the lease's TTL.
    """

    fence: Fence
    lane: str
    lost: asyncio.Event

    async def release(self, measured_cost_s: float) -> None:
        """Give the lane back and settle the flow with what the request really cost; idempotent, never raises."""
        raise NotImplementedError
