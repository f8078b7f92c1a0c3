"""What the routes work with: the collaborators of one gateway process, built in app.py. Owns no behaviour."""

from dataclasses import dataclass

from contracts.observability import Telemetry
from gateway.admission import Admitter
from gateway.chat_service import ChatService
from gateway.drain import Drain
from gateway.instruments import Instruments
from gateway.readiness import Readiness
from gateway.turnstile import Turnstile
from gateway.wire.chat_request import BodyLimits


@dataclass(frozen=True, slots=True)
class Gateway:
    """One process's parts; created_s is its start as Unix time."""

    model: str
    created_s: int
    fingerprint: str
    body_limits: BodyLimits
    stall_s: float
    telemetry: Telemetry
    instruments: Instruments
    readiness: Readiness
    turnstile: Turnstile
    drain: Drain
    admitter: Admitter
    chat: ChatService
