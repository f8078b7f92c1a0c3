"""What the engine tells telemetry: one span per request with its phases, and the metrics. Owns when, not the names.

Everything is derived from the event stream, so the engine itself knows no telemetry; with no exporter a request costs
a dozen no-op calls.
"""

import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from contracts import telemetry as names
from contracts.engine_info import EngineInfo
from contracts.generate import Accepted, Event, Failed, Finished, GenerateRequest, Prefill, Tokens
from contracts.observability import Telemetry


class Instruments:
    """The process's instruments, made once."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry: Final = telemetry
        self.tracer: Final[Tracer] = telemetry.tracer
        self.tokens = telemetry.counter(names.TOKENS)
        self.busy = telemetry.counter(names.ENGINE_BUSY)
        self.gap = telemetry.histogram(names.INTER_CHUNK)
        self.active = telemetry.up_down(names.REQUESTS_ACTIVE)
        self.cancelled = telemetry.counter(names.REQUESTS_CANCELLED)
        self.context_used = telemetry.gauge(names.CONTEXT_USED)
        self._context_limit = telemetry.gauge(names.CONTEXT_LIMIT)
        self._planned = telemetry.gauge(names.MEMORY_PLANNED)

    def record_engine(self, info: EngineInfo) -> None:
        """The numbers that never change."""
        self._context_limit.set(info.context_limit)
        for region in info.memory.regions:
            self._planned.set(region.bytes, {names.REGION: region.name})


class RequestRecord:
    """One request as its events pass by; close() exactly once, whatever happened."""

    def __init__(self, instruments: Instruments, request: GenerateRequest, context: Context) -> None:
        self._instruments = instruments
        self._request = request
        self._span = instruments.tracer.start_span(names.SPAN_GENERATE, context=context, kind=SpanKind.SERVER)
        self._inner = set_span_in_context(self._span, context)
        self._phase: Span | None = None
        self._phase_name = "queue"
        self._num_cached = 0
        self._num_computed = 0
        self._last_tokens_s: float | None = None
        self._max_gap_s = 0.0
        self._num_tokens = 0
        self._last: Event | None = None
        instruments.active.add(1)

    def see(self, event: Event) -> None:
        """Take note of an event on its way out."""
        self._last = event
        if isinstance(event, Tokens):
            self._see_tokens(event)
        elif isinstance(event, Prefill):
            self._num_computed = event.done
        elif isinstance(event, Accepted):
            self._num_cached = event.cached_tokens
            self._enter("prefill", names.SPAN_PREFILL)

    def see_disconnect(self) -> None:
        """The client left before the end."""
        self._instruments.cancelled.add(1, {names.PHASE: self._phase_name})

    def close(self) -> None:
        """End the spans and book the totals."""
        self._instruments.active.add(-1)
        self._leave()
        last = self._last
        self._book(last)
        if self._span.is_recording():
            self._describe(last)
        self._span.end()

    def _see_tokens(self, event: Tokens) -> None:
        now_s = time.monotonic()
        if self._last_tokens_s is None:
            self._enter("decode", names.SPAN_DECODE)
        else:
            gap_s = now_s - self._last_tokens_s
            self._max_gap_s = max(self._max_gap_s, gap_s)
            self._instruments.gap.record(gap_s)
        self._last_tokens_s = now_s
        self._num_tokens += len(event.ids)

    def _enter(self, phase: str, span_name: str) -> None:
        self._leave()
        self._phase_name = phase
        self._phase = self._instruments.tracer.start_span(span_name, context=self._inner, kind=SpanKind.INTERNAL)

    def _leave(self) -> None:
        if self._phase is None:
            return
        if self._phase_name == "decode" and self._phase.is_recording():
            self._phase.set_attribute(names.DECODE_ROUNDS, self._num_tokens)
            self._phase.set_attribute(names.DECODE_MAX_GAP, self._max_gap_s)
        self._phase.end()
        self._phase = None

    def _book(self, last: Event | None) -> None:
        instruments = self._instruments
        counts = {"input_computed": self._num_computed, "input_cached": self._num_cached, "output": self._num_tokens}
        for kind, count in counts.items():
            instruments.tokens.add(count, {names.TOKEN_KIND: kind})
        if isinstance(last, Finished):
            usage, timings = last.usage, last.timings
            instruments.busy.add(timings.prefill_ms / 1e3, {names.PHASE: "prefill"})
            instruments.busy.add(timings.decode_ms / 1e3, {names.PHASE: "decode"})
            instruments.context_used.set(usage.prompt_tokens + usage.completion_tokens)

    def _describe(self, last: Event | None) -> None:
        request, span = self._request, self._span
        span.set_attribute(names.REQUEST_ID, request.request_id)
        span.set_attribute(names.TOKENS_PROMPT, len(request.token_ids))
        span.set_attribute(names.TOKENS_CACHED, self._num_cached)
        span.set_attribute(names.TOKENS_COMPUTED, self._num_computed)
        if request.fence is not None:
            span.set_attribute(names.FENCE_EPOCH, request.fence[0])
            span.set_attribute(names.FENCE_NUMBER, request.fence[1])
        if isinstance(last, Finished):
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, last.usage.completion_tokens)
            span.set_attribute(names.OUTCOME, last.reason)
        elif isinstance(last, Failed):
            span.set_attribute(names.ERROR_TYPE, last.code)
            span.set_status(Status(StatusCode.ERROR))
