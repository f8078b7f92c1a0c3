"""The order of service: Lua against a naive model on random schedules, and the properties agents feel."""

import asyncio
import itertools
import random
from dataclasses import dataclass, field, replace

import pytest

from gateway.turnstile import Band, TurnstileLimits
from gateway.turnstile.fair import predict
from gateway.turnstile.store import Granted, QueueStore
from support.turnstile_driver import QUICK, entry, store

AGEING_S = 20.1  # no multiple of the schedule's quarter seconds, so no ticket ages on the microsecond
PATIENT = replace(QUICK, lease_ttl_s=1e6, ageing_s=AGEING_S)
BANDS: tuple[Band, ...] = ("interactive", "background")


@dataclass
class Job:
    name: str
    agent: str
    band: Band
    cost_s: float
    born_s: float
    number: int
    arrival: float = 0.0
    tag: float = 0.0


@dataclass
class Model:
    """Start-time fair queueing by its definition, looking at every ticket each time."""

    lanes: dict[str, Job | None]
    waiting: list[Job] = field(default_factory=list)
    finish: dict[tuple[Band, str], float] = field(default_factory=dict)
    clock: dict[Band, float] = field(default_factory=lambda: dict.fromkeys(BANDS, 0.0))

    def enter(self, job: Job) -> None:
        self.age(job.born_s)
        job.arrival = self.clock[job.band]
        self.waiting.append(job)
        self.serve()

    def leave(self, name: str, now_s: float) -> None:
        self.waiting = [job for job in self.waiting if job.name != name]
        self.age(now_s)
        self.serve()

    def release(self, lane: str, measured_s: float, now_s: float) -> None:
        job = self.lanes[lane]
        assert job is not None
        self.lanes[lane] = None
        self.finish[job.band, job.agent] += measured_s - job.cost_s
        busy = [other for other in (*self.waiting, *self.lanes.values()) if other and other.band == job.band]
        if not busy:
            ends = [end for (band, _), end in self.finish.items() if band == job.band]
            self.clock[job.band] = max(self.clock[job.band], *ends)
            self.finish = {key: end for key, end in self.finish.items() if key[0] != job.band}
        self.age(now_s)
        self.serve()

    def age(self, now_s: float) -> None:
        old = [job for job in self.waiting if job.band == "background" and job.born_s <= now_s - AGEING_S]
        for job in sorted(old, key=lambda job: job.number)[:8]:
            job.band, job.arrival = "interactive", self.clock["interactive"]

    def serve(self) -> None:
        for lane in self.lanes:
            if self.lanes[lane] is None and self.waiting:
                job = self.pick()
                self.waiting.remove(job)
                self.finish[job.band, job.agent] = job.tag + job.cost_s
                self.clock[job.band] = max(self.clock[job.band], job.tag)
                self.lanes[lane] = job

    def pick(self) -> Job:
        band = next(band for band in BANDS if any(job.band == band for job in self.waiting))
        heads: dict[str, Job] = {}
        for job in sorted(self.waiting, key=lambda job: job.number):
            if job.band == band:
                heads.setdefault(job.agent, job)
        for job in heads.values():
            job.tag = max(self.finish.get((band, job.agent), 0.0), job.arrival)
        return min(heads.values(), key=lambda job: (job.tag, job.number))


async def holders(calls: QueueStore) -> dict[str, str | None]:
    return {row.lane: row.request_id for row in (await calls.snapshot()).lanes}


async def release(calls: QueueStore, ticket_id: str, lane: str, measured_s: float) -> bool:
    """Give the lane back with the fence it is held under."""
    fence = next(row.fence for row in (await calls.snapshot()).lanes if row.lane == lane)
    assert fence is not None
    return await calls.release(ticket_id, lane, fence, measured_s)


async def run_schedule(url: str, seed: int, lanes: tuple[str, ...]) -> int:
    """Drive both through the same random schedule; the number of grants compared."""
    draw = random.Random(seed)
    model = Model(dict.fromkeys(lanes))
    names = itertools.count(1)
    num_grants = 0
    async with store(url, PATIENT, lanes, f"g{seed}-a") as one, store(url, PATIENT, lanes, f"g{seed}-b") as two:
        now_s = 1000.0
        for _ in range(120):
            now_s += draw.randrange(0, 16) / 4
            one.now_ms = two.now_ms = now_s * 1000
            calls = draw.choice((one, two))
            held = [lane for lane, job in model.lanes.items() if job is not None]
            action = draw.choices(("enter", "release", "leave"), (5, 3, 1))[0]
            if action == "release" and held:
                lane, measured_s = draw.choice(held), draw.randrange(0, 80) / 8
                job = model.lanes[lane]
                assert job is not None
                assert await release(calls, job.name, lane, measured_s)
                model.release(lane, measured_s, now_s)
            elif action == "leave" and model.waiting:
                name = draw.choice(model.waiting).name
                await calls.leave(name)
                model.leave(name, now_s)
            else:
                number = next(names)
                name, agent = f"t{number}", draw.choice("abcde")
                band: Band = draw.choice(BANDS)
                cost_s = draw.randrange(1, 80) / 8
                await calls.enqueue(name, entry(agent, cost_s, band, name))
                model.enter(Job(name, agent, band, cost_s, now_s, number))
            expected = {lane: job.name if job else None for lane, job in model.lanes.items()}
            assert await holders(calls) == expected, f"seed {seed}: {action} at {now_s}"
            num_grants += 1
        await drain(one, model, now_s)
    return num_grants


async def drain(calls: QueueStore, model: Model, now_s: float) -> None:
    """Serve the rest at its estimates: Lua, the model and the predicted order agree to the end."""
    snapshot = predict(await calls.snapshot())
    predicted = [ticket.request_id for ticket in snapshot.waiting]
    served: list[str] = []
    while any(model.lanes.values()):
        lane = next(lane for lane, job in model.lanes.items() if job is not None)
        job = model.lanes[lane]
        assert job is not None
        await release(calls, job.name, lane, job.cost_s)
        model.release(lane, job.cost_s, now_s)
        expected = {name: holder.name if holder else None for name, holder in model.lanes.items()}
        assert await holders(calls) == expected
        after = model.lanes[lane]
        served += [after.name] if after is not None else []
    assert served == predicted


@pytest.mark.parametrize(("seed", "num_lanes"), [(seed, 1 + seed % 3 // 2) for seed in range(9)])
def test_lua_serves_as_the_model(redis_url: str, seed: int, num_lanes: int) -> None:
    lanes = tuple(f"lane{i}" for i in range(num_lanes))
    assert asyncio.run(run_schedule(redis_url, seed, lanes)) == 120


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


@dataclass(frozen=True)
class Habit:
    """An agent that always has num_waiting requests queued, of about cost_s, estimated at guess times that."""

    cost_s: float
    num_waiting: int
    guess: float


HABITS = {
    "short": Habit(1.0, 4, 1.0),
    "long": Habit(12.0, 4, 1.0),
    "liar": Habit(8.0, 4, 0.1),
    "crowd": Habit(2.0, 20, 1.0),
    "cautious": Habit(3.0, 4, 4.0),
}


async def share_lane(url: str, until_s: float) -> dict[str, float]:
    """Engine-seconds per agent after until_s of one lane, everyone asking for more than it gets."""
    draw = random.Random(7)
    used = dict.fromkeys(HABITS, 0.0)
    served: dict[str, list[int]] = {agent: [] for agent in HABITS}
    names = itertools.count(1)
    limits = replace(PATIENT, ageing_s=1e6)

    async with store(url, limits) as calls:
        calls.now_ms = 1.0e6
        end_ms = calls.now_ms + until_s * 1000

        async def ask(agent: str) -> None:
            cost_s = HABITS[agent].cost_s * HABITS[agent].guess
            name = f"{agent}:{next(names)}"
            await calls.enqueue(name, entry(agent, cost_s, request_id=name))

        for agent, habit in HABITS.items():
            for _ in range(habit.num_waiting):
                await ask(agent)
        while calls.now_ms < end_ms:
            name = (await holders(calls))["lane0"]
            assert name is not None
            agent, number = name.split(":")
            cost_s = HABITS[agent].cost_s * draw.uniform(0.5, 1.5)
            calls.now_ms += cost_s * 1000
            used[agent] += cost_s
            served[agent].append(int(number))
            await ask(agent)
            await release(calls, name, "lane0", cost_s)
    for numbers in served.values():
        assert numbers == sorted(numbers), "first come, first served inside one agent"
    return used


def test_equal_demand_gets_equal_seconds(redis_url: str) -> None:
    used = asyncio.run(share_lane(redis_url, 450.0))
    index = jain(list(used.values()))
    print(f"\nJain index {index:.4f}, engine-seconds { ({agent: round(s) for agent, s in used.items()}) }")
    assert index >= 0.95


def line(agents: str, band: Band = "interactive") -> list[tuple[str, Band, float]]:
    """One request of a second for each letter."""
    return [(agent, band, 1.0) for agent in agents]


async def order_of(url: str, entries: list[tuple[str, Band, float]], limits: TurnstileLimits = PATIENT) -> list[str]:
    """Agents in order of service behind a running request, all queued one second apart, then released at once."""
    async with store(url, limits) as calls:
        calls.now_ms = 1.0e6
        first = await calls.enqueue("running", entry("other", request_id="running"))
        assert isinstance(first, Granted)
        for number, (agent, band, cost_s) in enumerate(entries):
            calls.now_ms += 1000
            await calls.enqueue(f"t{number}", entry(agent, cost_s, band, f"{agent}{number}"))
        served: list[str] = []
        holder, ticket_id = "running", "running"
        while True:
            await release(calls, ticket_id, "lane0", 1.0)
            holder = (await holders(calls))["lane0"] or ""
            if not holder:
                return served
            served.append(holder)
            ticket_id = f"t{holder[1:]}"


def test_interactive_comes_before_background(redis_url: str) -> None:
    entries = [*line("b", "background"), *line("a")] * 3
    served = asyncio.run(order_of(redis_url, entries))
    assert served == ["a1", "a3", "a5", "b0", "b2", "b4"]


def test_aged_background_rises(redis_url: str) -> None:
    entries = [*line("b", "background"), *line("aaaaaa")]
    served = asyncio.run(order_of(redis_url, entries, replace(PATIENT, ageing_s=5.0)))
    assert served.index("b0") <= 1, "after five seconds it shares the lane with the interactive agent"


def test_equal_tags_are_served_by_arrival(redis_url: str) -> None:
    assert asyncio.run(order_of(redis_url, line("zyxabc"))) == ["z0", "y1", "x2", "a3", "b4", "c5"]


def test_a_newcomer_does_not_wait_behind_a_crowd(redis_url: str) -> None:
    served = asyncio.run(order_of(redis_url, line("ccccccccccn")))
    assert served.index("n10") <= 1


def test_seconds_used_alone_are_not_held_against_an_agent(redis_url: str) -> None:
    async def scenario() -> dict[str, str | None]:
        async with store(redis_url, PATIENT) as calls:
            await calls.enqueue("night", entry("a", 1000.0, request_id="night"))
            await release(calls, "night", "lane0", 1000.0)
            await calls.enqueue("b1", entry("b", request_id="b1"))
            await calls.enqueue("a1", entry("a", request_id="a1"))
            await calls.enqueue("b2", entry("b", request_id="b2"))
            await release(calls, "b1", "lane0", 1.0)
            return await holders(calls)

    assert asyncio.run(scenario()) == {"lane0": "a1"}
