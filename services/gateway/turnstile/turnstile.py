"""The turnstile: tickets in, leases out, fair between agents, over all gateways that share one store.

Owns this gateway's part of the queue: entering, leaving, giving back. Heartbeat, wake-ups and transitions are pulse.py,
wake.py and store.py. Knows no HTTP, no engine and no request content.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from contracts.errors import QueueFull, QueueUnavailable, ShuttingDown
from contracts.generate import Fence
from contracts.observability import Telemetry
from gateway.turnstile.fair import predict
from gateway.turnstile.lease import Lease
from gateway.turnstile.model import MAX_REQUEST_ID_CHARS, QueueSnapshot, TicketEntry, TurnstileLimits, clip_agent
from gateway.turnstile.pulse import Pulse, describe_failure
from gateway.turnstile.roster import Roster
from gateway.turnstile.store import STORE_ERRORS, FenceFloor, Full, GiveBack, Granted, QueueStore, Waiting, connect
from gateway.turnstile.ticket import Ticket
from gateway.turnstile.wake import Wake

MAX_FENCE_PART = 2**53 - 1
UNAVAILABLE_RETRY_S = 1.0

_log = logging.getLogger("gateway.turnstile")


class Turnstile:
    """One gateway's door to the lanes; start() once, stop() once, all on one event loop.

    lanes: names without comma or space, the same on every gateway that shares the store.
    """

    def __init__(self, redis_url: str, limits: TurnstileLimits, lanes: Sequence[str], telemetry: Telemetry) -> None:
        self._owner = secrets.token_hex(8)
        self._limits = limits
        self._clients = [connect(redis_url, limits, size) for size in (limits.max_connections, 1, 1)]
        commands, heartbeat, wake_ups = self._clients
        self._floor = FenceFloor()
        self._store = QueueStore(commands, self._owner, lanes, limits, self._floor)
        self._roster = Roster(telemetry, self._release)
        pulse_store = QueueStore(heartbeat, self._owner, lanes, limits, self._floor)
        self._pulse = Pulse(pulse_store, self._roster, limits.lease_ttl_s, limits.outage_limit_s)
        self._wake = Wake(wake_ups, self._owner, self._on_grant, self._pulse.nudge)
        self._loops: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_tickets = 0
        self._stopping = False

    async def start(self) -> None:
        """Start heartbeat and wake-ups; returns after the first beat, good or not, within two command time-outs."""
        loops = {"turnstile-pulse": self._pulse.run(), "turnstile-wake": self._wake.run()}
        self._loops = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
        for task in self._loops:
            task.add_done_callback(_log_death)
        await self._pulse.first_try()

    async def stop(self) -> None:
        """Fail the waiters with ShuttingDown, give back every ticket and lease, close the connections."""
        self._stopping = True
        self._roster.fail_waiting(ShuttingDown("the gateway is stopping", retry_after_s=UNAVAILABLE_RETRY_S))
        await asyncio.gather(*(ticket.leave() for ticket in self._roster.all_tickets()))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for client in self._clients:
            await client.aclose()

    @property
    def healthy(self) -> bool:
        """Whether the store answered the last call and the heartbeat lives."""
        return self._pulse.healthy and bool(self._loops) and not any(task.done() for task in self._loops)

    @property
    def trouble(self) -> str:
        """What is wrong while it is not healthy, in words."""
        return self._pulse.trouble

    async def enqueue(self, entry: TicketEntry) -> Ticket:
        """Queue one request; on a free lane the ticket comes back granted, in one round trip.

        Raises: QueueFull and QueueUnavailable with retry_after_s; ShuttingDown after stop().
        """
        if self._stopping:
            raise ShuttingDown("the gateway is stopping", retry_after_s=UNAVAILABLE_RETRY_S)
        if not self.healthy:
            raise QueueUnavailable(self._pulse.trouble, retry_after_s=UNAVAILABLE_RETRY_S)
        self._num_tickets += 1
        ticket = Ticket(f"{self._owner}-{self._num_tickets}", _bounded(entry), self._leave)
        self._roster.add(ticket)
        # Shielded: a cancelled call may have reached the store, so it is let run and its ticket leaves after it.
        entering = self._start(self._store.enqueue(ticket.ticket_id, ticket.entry))
        try:
            place = await asyncio.shield(entering)
        except asyncio.CancelledError:
            self._start(self._leave_after(entering, ticket))
            raise
        except STORE_ERRORS as error:
            self._roster.drop(ticket.ticket_id)
            self._owe(GiveBack(ticket.ticket_id), error)
            raise QueueUnavailable(describe_failure(error), retry_after_s=UNAVAILABLE_RETRY_S) from error
        return self._entered(ticket, place)

    async def snapshot(self) -> QueueSnapshot:
        """Lanes and waiting tickets of all gateways, in the order of service. Raises: QueueUnavailable."""
        try:
            return predict(await self._store.snapshot())
        except STORE_ERRORS as error:
            self._pulse.note_failure(error)
            raise QueueUnavailable(describe_failure(error), retry_after_s=UNAVAILABLE_RETRY_S) from error

    async def raise_fence(self, fence: Fence) -> None:
        """Make every later fence higher than this one (the last an engine saw); holds when the store is away, too."""
        assert all(0 <= part <= MAX_FENCE_PART for part in fence), fence
        if fence <= self._floor.fence:
            return
        self._floor.raise_to(fence)
        if not self.healthy:
            return
        try:
            await self._store.open()
        except STORE_ERRORS as error:
            self._pulse.note_failure(error)

    def _entered(self, ticket: Ticket, place: Granted | Waiting | Full) -> Ticket:
        if isinstance(place, Full):
            self._roster.drop(ticket.ticket_id)
            message = f"the queue holds {place.num_waiting} requests, the limit is {self._limits.queue_limit}"
            raise QueueFull(message, retry_after_s=max(1.0, place.ahead_s))
        if isinstance(place, Granted):
            self._roster.grant(ticket.ticket_id, place)
        elif ticket.is_waiting:
            ticket.position, ticket.estimate_s = place.num_ahead, place.ahead_s
            self._roster.enter(ticket, place.seq)
        return ticket

    def _on_grant(self, ticket_id: str, granted: Granted) -> None:
        self._floor.raise_to(granted.fence)
        if not self._roster.grant(ticket_id, granted):
            self._start(self._settle(GiveBack(ticket_id)))

    async def _leave(self, ticket: Ticket) -> None:
        if ticket.lease is not None:
            await ticket.lease.release(ticket.lease.held_s)
            return
        self._roster.drop(ticket.ticket_id)
        await asyncio.shield(self._start(self._settle(GiveBack(ticket.ticket_id))))

    async def _leave_after(self, entering: "asyncio.Task[Granted | Waiting | Full]", ticket: Ticket) -> None:
        await asyncio.wait((entering,))
        if not entering.cancelled() and entering.exception() is not None:
            _log.debug("a cancelled request did not reach the queue: %s", entering.exception())
        await ticket.leave()

    async def _release(self, ticket_id: str, lease: Lease, measured_cost_s: float) -> None:
        self._roster.drop(ticket_id)
        debt = GiveBack(ticket_id, Granted(lease.lane, lease.fence), measured_cost_s)
        await asyncio.shield(self._start(self._settle(debt)))

    async def _settle(self, debt: GiveBack) -> None:
        if not self.healthy:
            self._roster.debts[debt.ticket_id] = debt
            return
        try:
            await self._store.settle(debt)
        except STORE_ERRORS as error:
            self._owe(debt, error)

    def _owe(self, debt: GiveBack, error: BaseException) -> None:
        self._roster.debts[debt.ticket_id] = debt
        self._pulse.note_failure(error)

    def _start(self, work: "Coroutine[Any, Any, Any]") -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _bounded(entry: TicketEntry) -> TicketEntry:
    assert len(entry.request_id) <= MAX_REQUEST_ID_CHARS, f"request id has {len(entry.request_id)} characters"
    return replace(entry, agent=clip_agent(entry.agent))


def _log_death(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended, the queue is closed", task.get_name(), exc_info=task.exception())
