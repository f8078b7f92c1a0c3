"""The one queue in front of the engines: tickets, fairness, leases. Hands on leases; knows no HTTP and no engine."""

from gateway.turnstile.lease import Lease
from gateway.turnstile.model import Band, LaneView, QueueSnapshot, TicketEntry, TurnstileLimits, WaitingTicket
from gateway.turnstile.ticket import Ticket
from gateway.turnstile.turnstile import Turnstile

__all__ = [
    "Band",
    "LaneView",
    "Lease",
    "QueueSnapshot",
    "Ticket",
    "TicketEntry",
    "Turnstile",
    "TurnstileLimits",
    "WaitingTicket",
]
