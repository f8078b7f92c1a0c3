"""Gateways that die without a word: real processes, SIGKILL, and the lane is free again in seconds and never shared."""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gateway.turnstile.store import KEY_PREFIX
from support.turnstile_driver import QUICK, entry, granted, queue_keys, raw_client, turnstile

ROOT = Path(__file__).resolve().parents[3]


def start_worker(url: str, seconds: float, seed: int, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "support.lane_worker", url, str(seconds), str(seed), *words]
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("services", "tests"))
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_holder_loses_lane_and_tickets_in_seconds(redis_url: str) -> None:
    async def scenario(worker: "subprocess.Popen[str]") -> float:
        assert worker.stdout is not None
        word, epoch, n, _ = (await asyncio.to_thread(worker.stdout.readline)).split()
        assert word == "acquire"
        async with turnstile(redis_url) as door, raw_client(redis_url) as client:
            ticket = await door.enqueue(entry("b"))
            assert await ticket.wait(1.3 * QUICK.lease_ttl_s) is None, "a living holder keeps its lane beyond the TTL"
            worker.send_signal(signal.SIGKILL)
            killed_s = time.monotonic()
            lease = await granted(ticket)
            away_s = time.monotonic() - killed_s
            assert lease.fence > (int(epoch), int(n))
            assert (await door.snapshot()).waiting == (), "the dead one's tickets are gone"
            keys = [key.removeprefix(KEY_PREFIX) for key in await queue_keys(client)]
            assert not [key for key in keys if key.startswith(("ticket:", "flow:"))], keys
            return away_s

    worker = start_worker(redis_url, 0, 0, "hold")
    try:
        away_s = asyncio.run(scenario(worker))
    finally:
        worker.kill()
        worker.communicate()
    print(f"\nlane free {away_s:.2f} s after the kill, TTL {QUICK.lease_ttl_s} s")
    assert away_s <= QUICK.lease_ttl_s * 4 / 3 + 0.5


@dataclass(frozen=True)
class Spell:
    """One use of the lane, from after the grant to before the release; a killed worker's spell ends with it."""

    fence: tuple[int, int]
    begun_s: float
    ended_s: float


def spells_of(text: str, killed_s: float | None) -> list[Spell]:
    """Spells in a worker's lines; a last line cut by the kill is dropped, lost leases are not spells."""
    begun: dict[tuple[int, int], float] = {}
    spells: list[Spell] = []
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        word, epoch, n, at_s = line.split()
        fence = int(epoch), int(n)
        if word == "acquire":
            begun[fence] = float(at_s)
        elif word == "release":
            spells.append(Spell(fence, begun.pop(fence), float(at_s)))
    assert len(begun) <= 1 or killed_s is not None, f"never released: {begun}"
    return spells + [Spell(fence, begun_s, killed_s or begun_s) for fence, begun_s in begun.items()]


def test_the_lane_is_never_shared_under_kills_and_cancels(redis_url: str) -> None:
    draw = random.Random(11)
    workers = [(start_worker(redis_url, 60, seed), seed) for seed in (1, 2)]
    spells: list[Spell] = []
    num_kills = 0
    time.sleep(1.0)
    for seed in (3, 4):
        time.sleep(draw.uniform(0.3, 0.8))
        workers.append((start_worker(redis_url, 2.0, seed), seed))
        victim, _ = workers.pop(0)
        victim.kill()
        killed_s = time.monotonic()
        num_kills += 1
        spells += spells_of(victim.communicate()[0], killed_s)
    for worker, seed in workers:
        text, _ = worker.communicate(timeout=30)
        assert worker.returncode == 0, f"worker {seed} failed"
        spells += spells_of(text, None)
    spells.sort(key=lambda spell: spell.begun_s)
    print(f"\n{len(spells)} spells on one lane, {num_kills} kills")
    assert len(spells) >= 50
    for earlier, later in itertools.pairwise(spells):
        assert earlier.ended_s <= later.begun_s, f"shared: {earlier} {later}"
        assert earlier.fence < later.fence, f"fences fell: {earlier} {later}"
