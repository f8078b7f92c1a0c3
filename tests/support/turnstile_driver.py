"""Short ways to drive the turnstile in tests: entries, started turnstiles, stores on a clock of the test's own.

Owns no assertion and no server.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from contracts.observability import start_telemetry
from gateway.turnstile import Band, Lease, Ticket, TicketEntry, Turnstile, TurnstileLimits
from gateway.turnstile.store import KEY_PREFIX, FenceFloor, QueueStore, connect

QUICK = TurnstileLimits(lease_ttl_s=1.2, restart_grace_s=0.0, command_timeout_s=1.0, outage_limit_s=20.0)


def entry(agent: str, cost_s: float = 1.0, band: Band = "interactive", request_id: str = "r") -> TicketEntry:
    """A request of that agent."""
    return TicketEntry(request_id, agent, band, cost_s, num_prompt_tokens=100)


@asynccontextmanager
async def turnstile(
    url: str, limits: TurnstileLimits = QUICK, lanes: tuple[str, ...] = ("lane0",)
) -> AsyncIterator[Turnstile]:
    """A started turnstile, stopped at the end."""
    door = Turnstile(url, limits, lanes, start_telemetry("test", "0", None))
    await door.start()
    try:
        yield door
    finally:
        await door.stop()


@asynccontextmanager
async def store(
    url: str, limits: TurnstileLimits = QUICK, lanes: tuple[str, ...] = ("lane0",), owner: str = "gateway"
) -> AsyncIterator[QueueStore]:
    """The transitions alone, opened, without heartbeat; set now_ms to drive its clock."""
    client = connect(url, limits, 2)
    calls = QueueStore(client, owner, lanes, limits, FenceFloor())
    calls.now_ms = 1_000.0
    try:
        await calls.open()
        yield calls
    finally:
        await client.aclose()


@asynccontextmanager
async def raw_client(url: str) -> AsyncIterator["Redis"]:
    """A plain client to look at keys with."""
    client = Redis.from_url(url, protocol=2, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()


async def queue_keys(client: "Redis") -> list[str]:
    """Every key of the queue, sorted."""
    return sorted([key async for key in client.scan_iter(f"{KEY_PREFIX}*", count=1000)])


async def clear_queue(url: str) -> None:
    """Delete the queue's keys and nothing else: the server may be somebody's."""
    async with raw_client(url) as client:
        keys = await queue_keys(client)
        if keys:
            await client.delete(*keys)


async def granted(ticket: Ticket, within_s: float = 5.0) -> Lease:
    """The lease, or a failed test."""
    lease = await ticket.wait(within_s)
    assert lease is not None, f"not granted within {within_s} s"
    return lease


async def until_healthy(door: Turnstile, within_s: float = 5.0) -> None:
    """Return when the store answers."""
    async with asyncio.timeout(within_s):
        while not door.healthy:
            await asyncio.sleep(0.01)
