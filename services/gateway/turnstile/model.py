"""What the turnstile speaks of: a request that wants the lane, the limits, and the queue as others may see it.

Owns shapes and their bounds. Does not know Redis or the event loop.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from contracts.generate import Fence

Band = Literal["interactive", "background"]
LostReason = Literal["superseded", "unreachable"]
BANDS: tuple[Band, ...] = ("interactive", "background")

MAX_REQUEST_ID_CHARS = 128
MAX_AGENT_CHARS = 96
MAX_TRACE_CHARS = 600
MIN_COST_S = 0.001
MAX_COST_S = 1e6
TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True)
class TicketEntry:
    """One request at the turnstile; agent names its flow, cost_s is the estimate in engine-seconds.

    trace holds the headers of the enqueuing span (traceparent, tracestate); others are dropped.
    """

    request_id: str
    agent: str
    band: Band
    cost_s: float
    num_prompt_tokens: int
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnstileLimits:
    """Bounds of the queue and of everyone's patience; seconds unless named otherwise.

    lease_ttl_s: how long a silent gateway keeps lane and tickets; the heartbeat runs at a third of it.
    ageing_s: a background ticket that waited this long becomes interactive.
    restart_grace_s: no grants for this long after the store restarted, so that holders can report their leases.
    outage_limit_s: waiting tickets survive a store that is away for less than this.
    """

    queue_limit: int = 256
    lease_ttl_s: float = 5.0
    ageing_s: float = 120.0
    restart_grace_s: float = 1.0
    outage_limit_s: float = 15.0
    command_timeout_s: float = 1.0
    max_connections: int = 8

    def __post_init__(self) -> None:
        assert self.queue_limit >= 1, self.queue_limit
        assert self.lease_ttl_s > 0, self.lease_ttl_s


@dataclass(frozen=True, slots=True)
class WaitingTicket:
    """A queued request in the order it would be served now (position 1 is next); estimate_s is its expected wait."""

    ticket_id: str
    request_id: str
    agent: str
    band: Band
    position: int
    estimate_s: float
    waited_s: float
    cost_s: float
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane and who holds it; a free lane has only its name."""

    lane: str
    request_id: str | None = None
    agent: str | None = None
    band: Band | None = None
    fence: Fence | None = None
    held_s: float = 0.0
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The whole queue at one instant of the store's clock."""

    lanes: tuple[LaneView, ...]
    waiting: tuple[WaitingTicket, ...]


def clip_agent(agent: str) -> str:
    """A flow name within MAX_AGENT_CHARS; longer ones keep their beginning and a digest, so flows never merge."""
    agent = agent.encode("utf-8", "replace").decode("utf-8")
    if len(agent) <= MAX_AGENT_CHARS:
        return agent
    digest = hashlib.sha256(agent.encode("utf-8")).hexdigest()[:16]
    return f"{agent[: MAX_AGENT_CHARS - 17]}~{digest}"


def pack_trace(trace: Mapping[str, str]) -> str:
    """The trace headers as one bounded line each; an oversized tracestate is dropped, as its standard allows."""
    lines = [f"{name}:{trace[name]}" for name in TRACE_HEADERS if name in trace]
    while lines and sum(map(len, lines)) + len(lines) > MAX_TRACE_CHARS:
        lines.pop()
    return "\n".join(lines)
