"""A gateway process for kill tests: `python -m support.lane_worker URL SECONDS SEED [hold]`.

Runs a turnstile with random clients that queue, give up, use the lane for moments and release it; writes one line per
step to stdout: `acquire EPOCH N MONOTONIC`, then `release` or `lost` with the same fields. With hold it takes the lane,
queues three more tickets and sleeps. Owns no assertion.
"""

import asyncio
import random
import sys
import time

from contracts.errors import QueueUnavailable
from gateway.turnstile import Lease, Ticket, Turnstile
from support.turnstile_driver import entry, turnstile

NUM_CLIENTS = 6


def say(word: str, lease: Lease) -> None:
    print(word, *lease.fence, time.monotonic(), flush=True)


async def use_lane(ticket: Ticket, draw: random.Random) -> None:
    """Wait with time-outs, give up now and then, hold the lane for a moment."""
    async with ticket:
        lease = await ticket.wait(draw.uniform(0.0, 0.3))
        if lease is None and draw.random() < 0.5:
            lease = await ticket.wait(5.0)
        if lease is None:
            return
        say("acquire", lease)
        try:
            await asyncio.sleep(draw.uniform(0.0, 0.02))
        finally:  # cancelled or not, from here on the lane is not used
            say("lost" if lease.lost.is_set() else "release", lease)
        if draw.random() < 0.8:
            await lease.release(0.01)


async def client(door: Turnstile, name: str, draw: random.Random, until_s: float) -> None:
    while time.monotonic() < until_s:
        try:
            ticket = await door.enqueue(entry(f"agent{draw.randrange(4)}", 0.01, request_id=name))
        except QueueUnavailable:
            await asyncio.sleep(0.05)
            continue
        work = asyncio.create_task(use_lane(ticket, draw))
        if draw.random() < 0.1:
            await asyncio.sleep(draw.uniform(0.0, 0.05))
            work.cancel()
        await asyncio.wait((work,))
        assert work.cancelled() or work.exception() is None, work.exception()


async def hold(door: Turnstile) -> None:
    ticket = await door.enqueue(entry("holder"))
    lease = await ticket.wait(None)
    assert lease is not None
    for _ in range(3):
        await door.enqueue(entry("holder"))
    say("acquire", lease)
    await asyncio.sleep(60)


async def main(url: str, seconds: float, seed: int, *, holding: bool) -> None:
    draw = random.Random(seed)
    async with turnstile(url) as door:
        if holding:
            await hold(door)
        until_s = time.monotonic() + seconds
        await asyncio.gather(*(client(door, f"{seed}-{i}", draw, until_s) for i in range(NUM_CLIENTS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), holding="hold" in sys.argv))
