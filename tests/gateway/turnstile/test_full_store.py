"""A store filled to its maxmemory by others: the queue goes on, for old and for new gateways."""

import asyncio
from pathlib import Path

import pytest
from redis.exceptions import OutOfMemoryError

from support.redis_server import running_server
from support.turnstile_driver import QUICK, entry, granted, raw_client, turnstile


async def fill(url: str) -> None:
    """Write until the store refuses, with small values at last so that nothing is left."""
    async with raw_client(url) as client:
        for size in (10_000, 100, 1):
            with pytest.raises(OutOfMemoryError):
                for number in range(100_000):
                    await client.set(f"other:{size}:{number}", "x" * size)


def test_a_full_store_never_blocks_the_queue(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        async with turnstile(url) as old:
            running = await granted(await old.enqueue(entry("a")))
            await fill(url)
            async with turnstile(url) as new, raw_client(url) as client:
                tickets = [await door.enqueue(entry(f"agent{i}")) for door in (old, new) for i in range(20)]
                await asyncio.sleep(1.5 * QUICK.lease_ttl_s)
                assert not running.lost.is_set(), "the heartbeat must pass"
                await running.release(1.0)
                fences = [running.fence]
                for ticket in tickets:
                    lease = await granted(ticket)
                    fences.append(lease.fence)
                    await lease.release(1.0)
                assert len(set(fences)) == 41
                with pytest.raises(OutOfMemoryError):
                    await client.set("still", "full")

    with running_server(tmp_path / "redis", ["--maxmemory", "4mb"], fsync="no") as server:
        asyncio.run(scenario(server.url))
