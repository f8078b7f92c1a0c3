"""The queue's transitions as typed calls: one Lua script and one round trip each. Owns wire forms and script loading.

Receives plain values, hands on replies as data. Holds no tickets, keeps no connection alive and never retries: that is
pulse.py's part. A store that restarted with its data kept differs from before only in its empty script cache, hence
scripts are loaded by one pipeline that runs `open` first: no transition can give out a fence of a stale epoch.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from contracts.generate import Fence
from gateway.turnstile.model import BANDS, MAX_COST_S, MIN_COST_S, TicketEntry, TurnstileLimits, pack_trace

STORE_ERRORS = (RedisError, OSError, TimeoutError)
KEY_PREFIX = "soloist:{turnstile}:"
TRANSITIONS = ("open", "enqueue", "release", "leave", "pulse", "snapshot")
_LIBRARY = ("keys", "fair", "lanes")
_LUA_FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Granted:
    """The ticket holds a lane."""

    lane: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class Waiting:
    """The ticket waits; num_ahead counts itself, both figures are upper bounds of its place."""

    seq: int
    num_ahead: int
    ahead_s: float


@dataclass(frozen=True, slots=True)
class Full:
    """The queue took no ticket."""

    num_waiting: int
    ahead_s: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store does not know the ticket."""


Place = Granted | Waiting | Unknown


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A ticket that leaves (granted is None), or a lane that is given back at its measured cost."""

    ticket_id: str
    granted: Granted | None = None
    measured_cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldLease:
    """What a gateway reports of a lease, enough to take it back when the store forgot it."""

    ticket_id: str
    entry: TicketEntry
    lane: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class Opened:
    """Seconds until grants resume after a restart, and what the store does when its memory is full."""

    grace_s: float
    eviction_policy: str


@dataclass(frozen=True, slots=True)
class PulseReply:
    """Grace left before grants resume, whether each lease is still held, where each ticket stands."""

    grace_s: float
    held: tuple[bool, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class FlowTicket:
    """A waiting ticket as the fair order needs it; arrival is its band's virtual time when it came."""

    ticket_id: str
    request_id: str
    agent: str
    seq: int
    cost_s: float
    num_prompt_tokens: int
    arrival: float


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane's lease, or None in request_id for a free lane."""

    lane: str
    request_id: str | None
    agent: str | None
    band: str | None
    fence: Fence | None
    granted_ms: float
    charged_s: float


@dataclass(frozen=True, slots=True)
class BandRow:
    """One band: where each agent's last service finished in virtual time, and its waiting tickets."""

    band: str
    finishes: dict[str, float]
    tickets: tuple[FlowTicket, ...]


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """The queue at now_ms of the store's clock."""

    now_ms: float
    lanes: tuple[LaneRow, ...]
    bands: tuple[BandRow, ...]


class FenceFloor:
    """The highest fence this gateway has heard of; every transition carries it, so that no fence falls below it."""

    def __init__(self) -> None:
        self.fence: Fence = (0, 0)

    def raise_to(self, fence: Fence) -> None:
        """Never goes down."""
        self.fence = max(self.fence, fence)


class QueueStore:
    """One gateway's calls to the queue over one client."""

    def __init__(
        self, client: "Redis", owner: str, lanes: Sequence[str], limits: TurnstileLimits, floor: FenceFloor
    ) -> None:
        assert lanes and len(set(lanes)) == len(lanes), f"lanes must be named once each: {lanes}"
        assert not any("," in lane or " " in lane for lane in lanes), f"lane names have no comma or space: {lanes}"
        self._floor = floor
        self.now_ms = 0.0  # 0 leaves the clock to the store; tests drive it
        self._client = client
        self._owner = owner
        self._lanes = tuple(lanes)
        self._limits = limits
        library = "".join((_LUA_FOLDER / f"{name}.lua").read_text(encoding="utf-8") for name in _LIBRARY)
        self._scripts = {name: library + (_LUA_FOLDER / f"{name}.lua").read_text("utf-8") for name in TRANSITIONS}
        self._digests = {name: hashlib.sha1(script.encode()).hexdigest() for name, script in self._scripts.items()}

    async def open(self) -> Opened:
        """Enter this gateway and notice a restarted store."""
        grace_ms, epoch, n, policy = (await self._load())[0]
        self._floor.raise_to((int(epoch), int(n)))
        return Opened(float(grace_ms) / 1000, policy)

    async def enqueue(self, ticket_id: str, entry: TicketEntry, seq: int = 0) -> Granted | Waiting | Full:
        """Enter a ticket; seq is 0 for a new one, its old number when the store forgot it."""
        cost_s = min(max(entry.cost_s, MIN_COST_S), MAX_COST_S)
        trace = pack_trace(entry.trace)
        fields = (entry.band, entry.agent, cost_s, entry.num_prompt_tokens, entry.request_id, trace)
        reply = await self._call("enqueue", ticket_id, *fields, seq, self._limits.queue_limit)
        if reply[0] == "full":
            return Full(int(float(reply[1])), float(reply[2]))
        place = self._place(reply)
        assert not isinstance(place, Unknown), reply
        return place

    async def release(self, ticket_id: str, lane: str, fence: Fence, measured_cost_s: float) -> bool:
        """Settle and free a lane, grant the next; False when the lease was lost before."""
        cost_s = min(max(measured_cost_s, 0.0), MAX_COST_S)
        return bool(await self._call("release", ticket_id, lane, *fence, cost_s))

    async def settle(self, debt: GiveBack) -> None:
        """Leave or release, whichever the debt is."""
        if debt.granted is None:
            await self.leave(debt.ticket_id)
        else:
            await self.release(debt.ticket_id, debt.granted.lane, debt.granted.fence, debt.measured_cost_s)

    async def leave(self, ticket_id: str) -> None:
        """Take a ticket out, or give back the lane it was granted and never used."""
        await self._call("leave", ticket_id)

    async def pulse(self, leases: Sequence[HeldLease], ticket_ids: Sequence[str]) -> PulseReply:
        """Report what this gateway holds and waits for."""
        fields: list[str | int | float] = [len(leases)]
        for lease in leases:
            entry = lease.entry
            fields += [lease.ticket_id, lease.lane, *lease.fence, entry.band, entry.agent, entry.cost_s]
            fields += [entry.request_id, entry.num_prompt_tokens]
        grace_ms, held, places = await self._call("pulse", *fields, *ticket_ids)
        return PulseReply(
            float(grace_ms) / 1000, tuple(word == "held" for word in held), tuple(self._place(row) for row in places)
        )

    async def snapshot(self) -> SnapshotReply:
        """Every lane and waiting ticket."""
        now_ms, lanes, bands = await self._call("snapshot")
        lane_rows = tuple(_lane_row(name, row) for name, row in zip(self._lanes, lanes, strict=True))
        return SnapshotReply(float(now_ms), lane_rows, tuple(_band_row(row) for row in bands))

    def _place(self, reply: list[str]) -> Place:
        if reply[0] == "granted":
            granted = Granted(reply[1], (int(reply[2]), int(reply[3])))
            self._floor.raise_to(granted.fence)
            return granted
        if reply[0] == "waiting":
            return Waiting(int(float(reply[1])), int(float(reply[2])), float(reply[3]))
        return Unknown()

    def _arguments(self) -> tuple[str | int | float, ...]:
        limits = self._limits
        times = (limits.lease_ttl_s * 1000, limits.ageing_s * 1000, limits.restart_grace_s * 1000)
        return (1, KEY_PREFIX, self.now_ms, self._owner, *self._floor.fence, *times, ",".join(self._lanes))

    async def _call(self, name: str, *fields: str | int | float) -> Any:
        command = ("EVALSHA", self._digests[name], *self._arguments(), *fields)
        async with asyncio.timeout(2 * self._limits.command_timeout_s):
            try:
                return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]
            except NoScriptError:
                await self._load()
                return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _load(self) -> list[Any]:
        async with asyncio.timeout(2 * self._limits.command_timeout_s):
            pipeline = self._client.pipeline(transaction=False)
            pipeline.execute_command("EVAL", self._scripts["open"], *self._arguments())
            for script in self._scripts.values():
                pipeline.execute_command("SCRIPT LOAD", script)
            return list(await pipeline.execute())


def connect(redis_url: str, limits: TurnstileLimits, max_connections: int) -> "Redis":
    """A client that opens no connection yet and never retries by itself.

    No socket time-out: every call here stands in an asyncio.timeout. The client's own would use asyncio.wait_for, which
    before Python 3.12 may swallow a cancellation, and costs a task for each command.
    """
    pool = BlockingConnectionPool.from_url(
        redis_url,
        max_connections=max_connections,
        timeout=limits.command_timeout_s,
        protocol=2,
        decode_responses=True,
        socket_timeout=None,
        socket_connect_timeout=limits.command_timeout_s,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
    )
    return Redis.from_pool(pool)


def wake_channel(owner: str) -> str:
    """Where grants for one gateway's tickets are published, as "id lane epoch n"."""
    return f"{KEY_PREFIX}wake:{owner}"


def _lane_row(lane: str, row: list[str | None]) -> LaneRow:
    request_id, agent, band, epoch, n, granted_ms, charged_s = row
    fence = (int(epoch), int(n)) if epoch is not None and n is not None else None
    return LaneRow(lane, request_id, agent, band, fence, float(granted_ms or 0), float(charged_s or 0))


def _band_row(row: list[Any]) -> BandRow:
    band, flat, tickets = row
    assert band in BANDS, band
    finishes = {flat[i]: float(flat[i + 1]) for i in range(0, len(flat), 2)}
    complete = (fields for fields in tickets if fields[2] is not None)
    rows = (FlowTicket(f[0], f[1], f[2], int(float(f[3])), float(f[4]), int(f[5]), float(f[6])) for f in complete)
    return BandRow(band, finishes, tuple(rows))
