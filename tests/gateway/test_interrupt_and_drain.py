"""Ending a block from outside, as precisely as asyncio.timeout does; and the way out of the whole process."""

import asyncio
import time

import pytest

from contracts.errors import ShuttingDown, StaleLease
from gateway.drain import Drain
from gateway.interrupt import ClientGone, Interrupt


def test_the_first_signal_wins_and_becomes_the_error() -> None:
    async def run() -> None:
        interrupt = Interrupt()
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, interrupt.fire, ClientGone("left"))
        loop.call_later(0.01, interrupt.fire, StaleLease("too late"))
        async with interrupt:
            await asyncio.sleep(10)

    with pytest.raises(ClientGone, match="left"):
        asyncio.run(run())


def test_signals_outside_the_block_do_nothing() -> None:
    async def run() -> str:
        interrupt = Interrupt()
        interrupt.fire(ClientGone("before"))
        async with interrupt:
            await asyncio.sleep(0.01)
        interrupt.fire(ClientGone("after"))
        await asyncio.sleep(0.01)
        return "done"

    assert asyncio.run(run()) == "done"


def test_a_foreign_cancellation_stays_one() -> None:
    """The server cancels the task: nobody may mistake that for the client's leaving."""

    async def run() -> tuple[bool, Exception | None]:
        interrupt = Interrupt()

        async def body() -> None:
            async with interrupt:
                await asyncio.sleep(10)

        task = asyncio.ensure_future(body())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled(), interrupt.error

    assert asyncio.run(run()) == (True, None)


def test_both_at_once_leave_the_foreign_cancellation() -> None:
    async def run() -> bool:
        interrupt = Interrupt()

        async def body() -> None:
            async with interrupt:
                await asyncio.sleep(10)

        task = asyncio.ensure_future(body())
        await asyncio.sleep(0.01)
        interrupt.fire(ClientGone("left"))
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert asyncio.run(run())


def test_an_inner_timeout_is_not_swallowed() -> None:
    async def run() -> None:
        async with Interrupt(), asyncio.timeout(0.01):
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_drain_waits_then_tells_the_late_ones() -> None:
    async def run() -> tuple[list[str], float]:
        drain = Drain()
        ends: list[str] = []

        async def serve(duration_s: float) -> None:
            interrupt = Interrupt()
            with drain.running(interrupt):
                try:
                    async with interrupt:
                        await asyncio.sleep(duration_s)
                        ends.append("done")
                except ShuttingDown as error:
                    ends.append(error.code)

        tasks = [asyncio.ensure_future(serve(duration_s)) for duration_s in (0.05, 30.0)]
        await asyncio.sleep(0.01)
        drain.check()
        drain.begin()
        with pytest.raises(ShuttingDown) as caught:
            drain.check()
        assert caught.value.retry_after_s is not None and caught.value.retry_after_s >= 1
        started_s = time.monotonic()
        await drain.finish(0.2)
        await asyncio.gather(*tasks)
        return ends, time.monotonic() - started_s

    ends, elapsed_s = asyncio.run(run())
    assert ends == ["done", "shutting_down"] and 0.15 < elapsed_s < 1.5


def test_an_idle_drain_is_over_at_once() -> None:
    async def run() -> None:
        drain = Drain()
        drain.begin()
        await asyncio.wait_for(drain.finish(60.0), 1.0)

    asyncio.run(run())
