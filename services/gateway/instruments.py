"""The gateway's meters and spans, made once per process. Owns instruments and the labels they get; names nothing.

Receives plain numbers from the request path. Queue depth, queue wait and lost leases are the turnstile's own.
"""

from dataclasses import dataclass

from opentelemetry.trace import Tracer

from contracts import telemetry as names
from contracts.observability import Telemetry
from gateway.reply import ReplyUsage


@dataclass(frozen=True, slots=True)
class ReplyTimes:
    """Seconds on this process's monotonic clock; first and last token are None when none came."""

    arrived_s: float
    tokenize_s: float
    queue_s: float
    engine_s: float
    first_token_s: float | None
    last_token_s: float | None


class Instruments:
    """What one gateway process measures."""

    def __init__(self, telemetry: Telemetry, model: str) -> None:
        self.tracer: Tracer = telemetry.tracer
        self._labels = {
            names.GEN_AI_OPERATION: names.SPAN_CHAT,
            names.GEN_AI_PROVIDER: names.PROVIDER,
            names.GEN_AI_REQUEST_MODEL: model,
        }
        self._duration = telemetry.histogram(names.REQUEST_DURATION)
        self._first_token = telemetry.histogram(names.TIME_TO_FIRST_TOKEN)
        self._per_token = telemetry.histogram(names.TIME_PER_OUTPUT_TOKEN)
        self._admissions = telemetry.counter(names.ADMISSIONS)
        self._active = telemetry.up_down(names.REQUESTS_ACTIVE)
        self._cancelled = telemetry.counter(names.REQUESTS_CANCELLED)
        self._overhead = telemetry.histogram(names.GATEWAY_OVERHEAD)
        self._tokenize = telemetry.histogram(names.TOKENIZE_DURATION)
        self._tokens = telemetry.counter(names.TOKENS)

    def count_active(self, change: int) -> None:
        """A request arrived (+1) or sent its last byte (-1)."""
        self._active.add(change)

    def count_admission(self, outcome: str, reason: str) -> None:
        """One decision: admitted, clamped or rejected, and why."""
        self._admissions.add(1, {names.OUTCOME: outcome, names.REASON: reason})

    def count_cancelled(self, phase: str) -> None:
        """A client left while its request was in this phase."""
        self._cancelled.add(1, {names.PHASE: phase})

    def record_tokenize(self, duration_s: float) -> None:
        """Rendering and tokenising of one prompt."""
        self._tokenize.record(duration_s)

    def record_duration(self, duration_s: float, error_code: str | None) -> None:
        """Arrival to last byte of one generation request."""
        labels = self._labels if error_code is None else {**self._labels, names.ERROR_TYPE: error_code}
        self._duration.record(duration_s, labels)

    def record_reply(self, times: ReplyTimes, usage: ReplyUsage, ended_s: float) -> None:
        """One reply that reached its regular end."""
        first, last = times.first_token_s, times.last_token_s
        if first is not None:
            self._first_token.record(first - times.arrived_s, self._labels)
        if first is not None and last is not None and usage.completion_tokens > 1:
            self._per_token.record((last - first) / (usage.completion_tokens - 1), self._labels)
        elsewhere_s = times.tokenize_s + times.queue_s + times.engine_s
        self._overhead.record(max(0.0, ended_s - times.arrived_s - elsewhere_s))
        self._tokens.add(usage.prompt_tokens - usage.cached_tokens, {names.TOKEN_KIND: "input_computed"})
        self._tokens.add(usage.cached_tokens, {names.TOKEN_KIND: "input_cached"})
        self._tokens.add(usage.completion_tokens, {names.TOKEN_KIND: "output"})
