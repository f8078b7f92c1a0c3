"""What is known of one HTTP request from its arrival on: id, clock, span, and how it ended. Owns the request's record.

Made by the outermost layer (api/edge.py), filled by whoever learns more, written as one log line at the end.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from opentelemetry.trace import INVALID_SPAN, Span

Phase = Literal["admit", "queued", "prefill", "decode"]

SCOPE_KEY = "soloist"


@dataclass(slots=True)
class RequestContext:
    """outcome is stop, length, cancelled, rejected or error; generation marks requests that the model answers."""

    request_id: str = field(default_factory=lambda: f"req_{secrets.token_hex(12)}")
    arrived_s: float = field(default_factory=time.monotonic)
    span: Span = INVALID_SPAN
    generation: bool = False
    status: int | None = None
    outcome: str | None = None
    error_code: str | None = None
    phase: Phase = "admit"


def context_of(scope: Mapping[str, object]) -> RequestContext:
    """The record of the request that this ASGI scope belongs to."""
    context = scope[SCOPE_KEY]
    assert isinstance(context, RequestContext), "the edge is missing"
    return context
