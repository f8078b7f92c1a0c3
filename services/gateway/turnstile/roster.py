"""This gateway's tickets and leases, and what it still owes the store. Owns their local state and its meters.

Receives grants and losses from whoever hears of them first (reply, wake-up, heartbeat); each may come twice or late.
Does not talk to the store.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from contracts.errors import ServiceError
from contracts.observability import Telemetry
from contracts.telemetry import BAND, LEASE_LOST, OUTCOME, QUEUE_DEPTH, QUEUE_WAIT
from gateway.turnstile.lease import Lease
from gateway.turnstile.model import LostReason
from gateway.turnstile.store import GiveBack, Granted, HeldLease
from gateway.turnstile.ticket import Ticket


class Roster:
    """Tickets from their making until they left; debts are the give-backs the store has not taken yet."""

    def __init__(self, telemetry: Telemetry, give_back: Callable[[str, Lease, float], Awaitable[None]]) -> None:
        self.debts: dict[str, GiveBack] = {}
        self._tickets: dict[str, Ticket] = {}
        self._waiting: set[str] = set()
        self._give_back = give_back
        self._depth = telemetry.up_down(QUEUE_DEPTH)
        self._wait = telemetry.histogram(QUEUE_WAIT)
        self._lost = telemetry.counter(LEASE_LOST)

    def add(self, ticket: Ticket) -> None:
        """A ticket that is about to enter the store's queue."""
        self._tickets[ticket.ticket_id] = ticket

    def enter(self, ticket: Ticket, seq: int) -> None:
        """The store queued it under seq; a grant may have overtaken this reply."""
        ticket.seq = seq
        if ticket.is_waiting:
            self._waiting.add(ticket.ticket_id)
            self._depth.add(1, {BAND: ticket.entry.band})

    def grant(self, ticket_id: str, granted: Granted) -> bool:
        """Wake the ticket; False when nobody here wants that lane, so that it must be given back."""
        ticket = self._tickets.get(ticket_id)
        if ticket is None:
            return False
        if ticket.is_waiting:
            ticket.grant(Lease(granted.fence, granted.lane, partial(self._give_back, ticket_id)))
            self._count_out(ticket, "served")
        return ticket.lease is not None

    def drop(self, ticket_id: str) -> None:
        """Forget a ticket that left or whose lease was released."""
        ticket = self._tickets.pop(ticket_id, None)
        if ticket is not None and ticket.lease is None:
            self._count_out(ticket, "cancelled")

    def all_tickets(self) -> list[Ticket]:
        """Everything that may still hold a place or a lane."""
        return list(self._tickets.values())

    def waiting(self) -> list[Ticket]:
        """Tickets the store should know, in order of arrival."""
        return sorted((self._tickets[ticket_id] for ticket_id in self._waiting), key=lambda ticket: ticket.seq)

    def held(self) -> list[HeldLease]:
        """Leases to keep alive: granted, not released, not superseded."""
        return [
            HeldLease(ticket.ticket_id, ticket.entry, ticket.lease.lane, ticket.lease.fence)
            for ticket in self._tickets.values()
            if ticket.lease is not None and not ticket.lease.released and ticket.lease.lost_reason != "superseded"
        ]

    def lose(self, ticket_id: str, reason: LostReason) -> None:
        """The lease of this ticket is gone or in doubt; counted and signalled once."""
        ticket = self._tickets.get(ticket_id)
        if ticket is not None and ticket.lease is not None and ticket.lease.lose(reason):
            self._lost.add(1)

    def fail_waiting(self, error: ServiceError) -> None:
        """Wake every waiter with an error; its leave() still owes the store a word."""
        for ticket in self.waiting():
            ticket.fail(error)
            self._count_out(ticket, "expired")

    def _count_out(self, ticket: Ticket, outcome: str) -> None:
        if ticket.ticket_id in self._waiting:
            self._waiting.remove(ticket.ticket_id)
            self._depth.add(-1, {BAND: ticket.entry.band})
        elif outcome != "served":
            return
        self._wait.record(ticket.waited_s, {BAND: ticket.entry.band, OUTCOME: outcome})
