"""Tickets and leases of living gateways: waking, leaving, limits, lanes, and what a forgetful store does to them."""

import asyncio
import time
from dataclasses import replace

import pytest

from contracts.errors import QueueFull, ShuttingDown
from gateway.turnstile import TicketEntry
from gateway.turnstile.model import MAX_AGENT_CHARS, clip_agent, pack_trace
from gateway.turnstile.store import KEY_PREFIX, Granted, HeldLease, connect, wake_channel
from gateway.turnstile.wake import Wake
from support.turnstile_driver import QUICK, clear_queue, entry, granted, queue_keys, raw_client, store, turnstile

BEAT_S = QUICK.lease_ttl_s / 3


def test_a_free_lane_is_granted_with_the_ticket(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as door:
            async with await door.enqueue(entry("a")) as ticket:
                assert ticket.position == 0
                lease = await ticket.wait(0)
                assert lease is not None and lease.lane == "lane0"
            snapshot = await door.snapshot()
            assert snapshot.lanes[0].request_id is None, "leaving gives an unreleased lane back"

    asyncio.run(scenario())


def test_release_wakes_another_gateway_at_once(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as one, turnstile(redis_url) as two:
            lease = await granted(await one.enqueue(entry("a")))
            ticket = await two.enqueue(entry("b"))
            assert ticket.position == 1 and await ticket.wait(0.05) is None
            begun_s = time.monotonic()
            await lease.release(0.5)
            await lease.release(0.5)
            following = await granted(ticket)
            assert time.monotonic() - begun_s < BEAT_S / 2, "woken by the heartbeat only"
            assert following.fence > lease.fence
            await following.release(0.1)

    asyncio.run(scenario())


def test_a_lost_wake_up_is_found_by_the_heartbeat(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as one, turnstile(redis_url) as two, raw_client(redis_url) as client:
            lease = await granted(await one.enqueue(entry("a")))
            ticket = await two.enqueue(entry("b"))
            await client.client_kill_filter(_type="pubsub")
            await lease.release(0.5)
            assert await ticket.wait(2 * BEAT_S) is not None

    asyncio.run(scenario())


def test_a_cancelled_waiter_leaves_the_queue(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as door:
            lease = await granted(await door.enqueue(entry("a")))

            async def request() -> None:
                async with await door.enqueue(entry("b")) as ticket:
                    await ticket.wait(None)

            waiter = asyncio.create_task(request())
            while not (await door.snapshot()).waiting:
                await asyncio.sleep(0.005)
            waiter.cancel()
            await asyncio.wait((waiter,))
            assert (await door.snapshot()).waiting == ()
            assert not lease.lost.is_set(), "the running one is not touched"

    asyncio.run(scenario())


def test_cancelling_while_entering_leaks_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as door:
            for delay in range(40):
                entering = asyncio.create_task(door.enqueue(entry("a")))
                for _ in range(delay % 10):
                    await asyncio.sleep(0)
                await asyncio.sleep(delay / 40_000)
                entering.cancel()
                await asyncio.wait((entering,))
                if not entering.cancelled():
                    await entering.result().leave()
            async with await door.enqueue(entry("b")) as ticket:
                await granted(ticket, 1.0)
                assert (await door.snapshot()).waiting == ()

    asyncio.run(scenario())


def test_leaving_a_ticket_that_was_granted_meanwhile_frees_the_lane(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as one, turnstile(redis_url) as two:
            lease = await granted(await one.enqueue(entry("a")))
            going, staying = await two.enqueue(entry("b")), await one.enqueue(entry("c"))
            await asyncio.gather(lease.release(1.0), going.leave())
            await going.leave()
            await granted(staying, BEAT_S / 2)

    asyncio.run(scenario())


def test_a_full_queue_refuses_with_an_estimate(redis_url: str) -> None:
    async def scenario() -> None:
        limits = replace(QUICK, queue_limit=3)
        async with turnstile(redis_url, limits) as door:
            running = await door.enqueue(entry("a", 5.0))
            queued = [await door.enqueue(entry("b", 10.0)) for _ in range(3)]
            with pytest.raises(QueueFull, match="holds 3 requests, the limit is 3") as caught:
                await door.enqueue(entry("c"))
            assert caught.value.retry_after_s is not None and 25 <= caught.value.retry_after_s <= 36
            await queued[0].leave()
            ticket = await door.enqueue(entry("c"))
            assert ticket.position == 3 and 20 < ticket.estimate_s < 26
            await running.leave()

    asyncio.run(scenario())


def test_position_and_estimate_are_renewed_while_waiting(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as door:
            lease = await granted(await door.enqueue(entry("a", 4.0)))
            await asyncio.gather(*(door.enqueue(entry("crowd", 2.0)) for _ in range(5)))
            ticket = await door.enqueue(entry("new", 2.0))
            assert ticket.position == 6
            await asyncio.sleep(1.3 * BEAT_S)
            assert ticket.position == 2, "a fresh agent comes second, behind the crowd's first"
            assert 4.0 < ticket.estimate_s < 6.0
            await lease.release(4.0)

    asyncio.run(scenario())


def test_every_lane_has_one_holder(redis_url: str) -> None:
    async def scenario() -> None:
        lanes = ("gpu0", "gpu1")
        async with turnstile(redis_url, lanes=lanes) as one, turnstile(redis_url, lanes=lanes) as two:
            leases = [await granted(await door.enqueue(entry("a"))) for door in (one, two)]
            assert {lease.lane for lease in leases} == set(lanes)
            ticket = await one.enqueue(entry("b"))
            assert await ticket.wait(0.05) is None
            await leases[1].release(1.0)
            assert (await granted(ticket)).lane == leases[1].lane

    asyncio.run(scenario())


def test_a_forgotten_lease_is_taken_back_and_forgotten_tickets_keep_their_order(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as one, turnstile(redis_url) as two:
            lease = await granted(await one.enqueue(entry("a")))
            tickets = [await door.enqueue(entry("b")) for door in (two, one, two)]
            await clear_queue(redis_url)
            one._pulse.nudge()
            await asyncio.sleep(1.3 * BEAT_S)
            view = (await one.snapshot()).lanes[0]
            assert view.fence == lease.fence and not lease.lost.is_set()
            fences = [lease.fence]
            await lease.release(1.0)
            for ticket in tickets:
                following = await granted(ticket, 0.2)
                fences.append(following.fence)
                await following.release(1.0)
            assert fences == sorted(set(fences)), "strictly rising over the loss"

    asyncio.run(scenario())


def test_a_lease_that_another_took_is_lost(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as one, turnstile(redis_url) as two, raw_client(redis_url) as client:
            lease = await granted(await one.enqueue(entry("a")))
            await client.delete(f"{KEY_PREFIX}lane:lane0")
            thief = await granted(await two.enqueue(entry("b")))
            await asyncio.wait_for(lease.lost.wait(), 2 * BEAT_S)
            assert lease.lost_reason == "superseded"
            await lease.release(1.0)
            assert (await two.snapshot()).lanes[0].fence == thief.fence, "a late release frees nobody else's lane"

    asyncio.run(scenario())


def test_a_heartbeat_overtaken_by_its_release_revives_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        async with store(redis_url) as calls:
            for pause_ms in (0.0, 2 * QUICK.lease_ttl_s * 1000):
                place = await calls.enqueue(f"t{pause_ms}", entry("a"))
                assert isinstance(place, Granted)
                held = HeldLease(f"t{pause_ms}", entry("a"), place.lane, place.fence)
                calls.now_ms += pause_ms
                await calls.leave("unknown")  # sweeps, so that the second lease has expired
                await calls.release(held.ticket_id, place.lane, place.fence, 1.0)
                reply = await calls.pulse([held], [])
                assert reply.held == (False,)
                assert (await calls.snapshot()).lanes[0].request_id is None

    asyncio.run(scenario())


def test_a_clock_set_back_delays_nobody_beyond_one_ttl(redis_url: str) -> None:
    async def scenario() -> None:
        limits = replace(QUICK, restart_grace_s=1.0)
        async with store(redis_url, limits) as calls, store(redis_url, limits, owner="dead") as dead:
            calls.now_ms = dead.now_ms = 10_000_000.0
            await dead.enqueue("held", entry("a"))
            await dead.enqueue("queued", entry("a"))
            calls.now_ms = 5_000_000.0
            await calls.enqueue("mine", entry("b"))
            calls.now_ms += QUICK.lease_ttl_s * 1000 + 1
            assert isinstance((await calls.pulse([], ["mine"])).places[0], Granted)
            assert not (await calls.snapshot()).bands[0].tickets

    asyncio.run(scenario())


def test_a_quiet_subscription_is_kept(redis_url: str) -> None:
    async def scenario() -> None:
        grants: list[str] = []
        subscribed = asyncio.Event()
        client = connect(redis_url, QUICK, 1)
        wake = Wake(client, "me", lambda ticket_id, _: grants.append(ticket_id), subscribed.set, idle_s=0.02)
        listening = asyncio.create_task(wake.run())
        await asyncio.wait_for(subscribed.wait(), 2)
        subscribed.clear()
        await asyncio.sleep(0.2)
        async with raw_client(redis_url) as other:
            await other.publish(wake_channel("me"), "t1 lane0 5 6")
        await asyncio.sleep(0.1)
        assert grants == ["t1"] and not subscribed.is_set(), "pings must not cost the subscription"
        listening.cancel()
        await asyncio.wait((listening,))
        await client.aclose()

    asyncio.run(scenario())


def test_fences_rise_above_what_the_engine_saw(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as door:
            first = await granted(await door.enqueue(entry("a")))
            await first.release(1.0)
            for seen in ((first.fence[0], first.fence[1] + 40), (first.fence[0] + 7, 3)):
                await door.raise_fence(seen)
                lease = await granted(await door.enqueue(entry("a")))
                assert lease.fence > seen
                await lease.release(1.0)

    asyncio.run(scenario())


def test_stopping_gives_everything_back(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as two:
            async with turnstile(redis_url) as one:
                await granted(await one.enqueue(entry("a")))
                waiter = await one.enqueue(entry("a"))
                ticket = await two.enqueue(entry("b"))
            await granted(ticket, 0.2)
            with pytest.raises(ShuttingDown):
                await waiter.wait(0)
            with pytest.raises(ShuttingDown):
                await one.enqueue(entry("a"))

    asyncio.run(scenario())


def test_keys_are_bounded_in_bytes_and_time(redis_url: str) -> None:
    async def scenario() -> None:
        async with turnstile(redis_url) as door, raw_client(redis_url) as client:
            trace = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "x" * 5000, "cookie": "no"}
            big = TicketEntry("r" * 128, "é\ud800" * 3000, "background", float("1e30"), 10**9, trace)
            tickets = [await door.enqueue(big) for _ in range(3)]
            keys = await queue_keys(client)
            for key in keys:
                assert await client.pttl(key) > 0, f"{key} lives for ever"
                assert (await client.memory_usage(key) or 0) < 2048, key
            for ticket in tickets:
                await ticket.leave()
            left = {key.removeprefix(KEY_PREFIX).split(":")[0] for key in await queue_keys(client)}
            assert left <= {"meta", "owners", "finish"}, "nothing of a ticket stays behind"

    asyncio.run(scenario())


def test_long_agent_names_stay_apart() -> None:
    names = {clip_agent("a" * 200 + str(i)) for i in range(50)}
    assert len(names) == 50 and max(map(len, names)) <= MAX_AGENT_CHARS
    assert clip_agent("opencode") == "opencode"


def test_an_oversized_trace_state_is_dropped_before_the_parent() -> None:
    assert pack_trace({"traceparent": "00-aa", "tracestate": "x" * 900}) == "traceparent:00-aa"
    assert pack_trace({"traceparent": "00-aa", "tracestate": "k=v"}) == "traceparent:00-aa\ntracestate:k=v"
    assert pack_trace({}) == ""
