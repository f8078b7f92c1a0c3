"""The heartbeat: reports tickets and leases every third of the TTL on its own connection, and finds the store again.

Owns the health of the store and reconnecting. Receives the roster, keeps it true to the store: missed grants, lost
leases, tickets to enter again after a data loss, positions. Does not take new tickets.
"""

import asyncio
import logging
import time

from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, ResponseError

from contracts.errors import QueueUnavailable
from gateway.turnstile.fair import predict
from gateway.turnstile.roster import Roster
from gateway.turnstile.store import STORE_ERRORS, Full, Granted, QueueStore, Unknown
from gateway.turnstile.ticket import Ticket

MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 0.5

_SILENT = "the queue store does not answer"
_log = logging.getLogger("gateway.turnstile")


class Pulse:
    """One gateway's heartbeat; run() never returns, nudge() makes it beat now."""

    def __init__(self, store: QueueStore, roster: Roster, lease_ttl_s: float, outage_limit_s: float) -> None:
        self._store = store
        self._roster = roster
        self._lease_ttl_s = lease_ttl_s
        self._outage_limit_s = outage_limit_s
        self._healthy = False
        self._trouble = _SILENT
        self._logged: str | None = None
        self._seen_s = time.monotonic()
        self._backoff_s = MIN_BACKOFF_S
        self._nudged = asyncio.Event()
        self._first_try = asyncio.Event()

    @property
    def healthy(self) -> bool:
        """Whether the store answered the last call of anyone here."""
        return self._healthy

    @property
    def trouble(self) -> str:
        """What is wrong with an unhealthy store, in its own words when it gave any."""
        return self._trouble

    async def run(self) -> None:
        """Beat for ever; waits longer after each failure, up to MAX_BACKOFF_S."""
        while True:
            self._nudged.clear()
            try:
                grace_s = await self._beat()
            except STORE_ERRORS as error:
                self.note_failure(error)
                self._despair()
                self._first_try.set()
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
                continue
            self._first_try.set()
            await self._rest(min(self._lease_ttl_s / 3, grace_s + 0.005 if grace_s > 0 else self._lease_ttl_s))

    async def first_try(self) -> None:
        """Return when the first beat succeeded or failed."""
        await self._first_try.wait()

    def nudge(self) -> None:
        """Beat now."""
        self._nudged.set()

    def note_failure(self, error: BaseException) -> None:
        """A call to the store failed: unhealthy until the next good beat, which is tried at once."""
        self._trouble = describe_failure(error)
        if self._trouble != self._logged:
            _log.warning("%s (%s: %s)", self._trouble, type(error).__name__, error)
        self._healthy, self._logged = False, self._trouble
        self._nudged.set()

    async def _beat(self) -> float:
        if not self._healthy:
            opened = await self._store.open()
            if opened.eviction_policy != "noeviction":
                _log.warning("queue store evicts keys (%s): set maxmemory-policy noeviction", opened.eviction_policy)
        await self._pay_debts()
        leases, tickets = self._roster.held(), self._roster.waiting()
        reply = await self._store.pulse(leases, [ticket.ticket_id for ticket in tickets])
        for lease, held in zip(leases, reply.held, strict=True):
            if not held:
                self._roster.lose(lease.ticket_id, "superseded")
        for ticket, place in zip(tickets, reply.places, strict=True):
            if isinstance(place, Granted) and not self._roster.grant(ticket.ticket_id, place):
                await self._store.leave(ticket.ticket_id)
            if isinstance(place, Unknown) and ticket.is_waiting:
                await self._enter_again(ticket)
        await self._renew_positions()
        if not self._healthy:
            _log.info("queue store answers")
            self._logged = None
        self._healthy, self._seen_s, self._backoff_s = True, time.monotonic(), MIN_BACKOFF_S
        return reply.grace_s

    async def _pay_debts(self) -> None:
        for debt in list(self._roster.debts.values()):
            await self._store.settle(debt)
            self._roster.debts.pop(debt.ticket_id, None)

    async def _enter_again(self, ticket: Ticket) -> None:
        place = await self._store.enqueue(ticket.ticket_id, ticket.entry, ticket.seq)
        assert not isinstance(place, Full), "a ticket with a number is never refused"
        wanted = ticket.is_waiting
        if isinstance(place, Granted):
            wanted = self._roster.grant(ticket.ticket_id, place)
        if not wanted:
            await self._store.leave(ticket.ticket_id)

    async def _renew_positions(self) -> None:
        waiting = {ticket.ticket_id: ticket for ticket in self._roster.waiting()}
        if not waiting:
            return
        for row in predict(await self._store.snapshot()).waiting:
            ticket = waiting.get(row.ticket_id)
            if ticket is not None and ticket.is_waiting:
                ticket.position, ticket.estimate_s = row.position, row.estimate_s

    def _despair(self) -> None:
        away_s = time.monotonic() - self._seen_s
        if away_s > self._lease_ttl_s:
            for lease in self._roster.held():
                self._roster.lose(lease.ticket_id, "unreachable")
        if away_s > self._outage_limit_s:
            message = f"the queue store is away for {away_s:.0f} s, the limit is {self._outage_limit_s:.0f} s"
            self._roster.fail_waiting(QueueUnavailable(message, retry_after_s=1.0))

    async def _rest(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._nudged.wait()
        except TimeoutError:
            return


def describe_failure(error: BaseException) -> str:
    """A failed call to the store in words for clients: what the store said of itself, if it said anything."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return f"the queue store refuses the login: {error}"
    if isinstance(error, BusyLoadingError):
        return f"the queue store is not ready: {error}"
    if isinstance(error, ResponseError):
        return f"the queue store refuses writes: {error}"
    return _SILENT
