"""What the turnstile adds to a request on a free lane: measured, printed, and held against the gateway's whole bar."""

import asyncio
import statistics
import time

from support.turnstile_driver import entry, granted, turnstile

NUM_REQUESTS = 250
BAR_MS = 2.0


async def measure(url: str) -> tuple[list[float], list[float]]:
    """Milliseconds of enqueue-until-granted and of release."""
    enter_ms: list[float] = []
    release_ms: list[float] = []
    async with turnstile(url) as door:
        for _ in range(NUM_REQUESTS):
            begun_s = time.perf_counter()
            lease = await granted(await door.enqueue(entry("a")))
            held_s = time.perf_counter()
            await lease.release(0.1)
            enter_ms.append((held_s - begun_s) * 1000)
            release_ms.append((time.perf_counter() - held_s) * 1000)
    return enter_ms, release_ms


def test_a_free_lane_costs_well_under_the_bar(redis_url: str) -> None:
    batches = [asyncio.run(measure(redis_url)) for _ in range(2)]
    enter_ms, release_ms = min(batches, key=lambda batch: statistics.median(batch[0]))
    p50, p99 = statistics.median(enter_ms), statistics.quantiles(enter_ms, n=100)[98]
    print(f"\nenqueue to grant p50 {p50:.2f} ms, p99 {p99:.2f} ms; release p50 {statistics.median(release_ms):.2f} ms")
    assert p50 <= BAR_MS
