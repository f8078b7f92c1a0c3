"""The store dies, freezes, forgets and comes back: nobody hangs, nothing is granted twice, fences rise."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import QueueUnavailable
from support.redis_server import RedisServer, running_server
from support.turnstile_driver import QUICK, entry, granted, turnstile, until_healthy

GRACEFUL = replace(QUICK, restart_grace_s=0.8)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_server(tmp_path / "redis") as running:
        yield running


@pytest.mark.parametrize("keep_data", [True, False], ids=["data kept", "data lost"])
def test_queue_and_lease_survive_a_killed_store(server: RedisServer, keep_data: bool) -> None:
    async def scenario() -> None:
        async with turnstile(server.url, GRACEFUL) as one, turnstile(server.url, GRACEFUL) as two:
            running = await granted(await one.enqueue(entry("a")))
            tickets = [await door.enqueue(entry("b")) for door in (one, two, one)]
            await asyncio.to_thread(server.restart, keep_data=keep_data)
            await asyncio.gather(until_healthy(one), until_healthy(two))
            newcomer = await two.enqueue(entry("c"))
            assert await newcomer.wait(0.3) is None, "the running lease was overlooked"
            assert (await two.snapshot()).lanes[0].fence == running.fence
            assert not running.lost.is_set()
            fences = [running.fence]
            await running.release(1.0)
            for ticket in (tickets[0], newcomer, *tickets[1:]):
                async with ticket:
                    fences.append((await granted(ticket)).fence)
            assert fences == sorted(set(fences)), "fences must rise strictly"
            assert fences[1][0] > fences[0][0], "a restarted store begins a new epoch"

    asyncio.run(scenario())


def test_an_empty_store_grants_nothing_before_holders_could_report(server: RedisServer) -> None:
    async def scenario() -> None:
        async with turnstile(server.url, GRACEFUL) as one:
            await granted(await one.enqueue(entry("a")))
            await asyncio.to_thread(server.restart, keep_data=False)
            async with turnstile(server.url, GRACEFUL) as other:
                ticket = await other.enqueue(entry("b"))
                assert ticket.position == 1 and await ticket.wait(1.0) is None

    asyncio.run(scenario())


def test_calls_fail_fast_while_the_store_is_down_and_debts_are_paid(server: RedisServer) -> None:
    async def scenario() -> None:
        async with turnstile(server.url) as door:
            lease = await granted(await door.enqueue(entry("a")))
            leaving, staying = await door.enqueue(entry("b")), await door.enqueue(entry("c"))
            server.kill()
            begun_s = time.monotonic()
            for _ in range(3):
                with pytest.raises(QueueUnavailable) as caught:
                    await door.enqueue(entry("d"))
                assert caught.value.retry_after_s == 1.0
            with pytest.raises(QueueUnavailable):
                await door.snapshot()
            await lease.release(1.0)
            await leaving.leave()
            assert time.monotonic() - begun_s < 0.5 and not door.healthy
            assert await staying.wait(0.2) is None, "waiting tickets survive a short outage"
            await asyncio.to_thread(server.start)
            await granted(staying, 3.0)
            assert (await door.snapshot()).waiting == ()

    asyncio.run(scenario())


def test_a_frozen_store_is_noticed_and_found_again(server: RedisServer) -> None:
    async def scenario() -> None:
        async with turnstile(server.url, replace(QUICK, command_timeout_s=0.3)) as door:
            server.pause()
            begun_s = time.monotonic()
            with pytest.raises(QueueUnavailable):
                await door.enqueue(entry("a"))
            assert time.monotonic() - begun_s < 1.0
            server.resume()
            await until_healthy(door)
            await granted(await door.enqueue(entry("b")), 3.0)

    asyncio.run(scenario())


def test_a_long_outage_ends_waiting_and_marks_leases(server: RedisServer) -> None:
    async def scenario() -> None:
        limits = replace(QUICK, lease_ttl_s=0.3, outage_limit_s=0.6)
        async with turnstile(server.url, limits) as door:
            lease = await granted(await door.enqueue(entry("a")))
            ticket = await door.enqueue(entry("b"))
            server.kill()
            with pytest.raises(QueueUnavailable, match="the limit is 1 s"):
                await ticket.wait(5.0)
            assert lease.lost.is_set() and lease.lost_reason == "unreachable"
            await lease.release(1.0)

    asyncio.run(scenario())


def test_a_gateway_may_start_before_its_store(server: RedisServer) -> None:
    server.kill()

    async def scenario() -> None:
        begun_s = time.monotonic()
        async with turnstile(server.url) as door:
            assert time.monotonic() - begun_s < 1.0 and not door.healthy
            with pytest.raises(QueueUnavailable):
                await door.enqueue(entry("a"))
            await asyncio.to_thread(server.start)
            await until_healthy(door)
            await granted(await door.enqueue(entry("a")))

    asyncio.run(scenario())
