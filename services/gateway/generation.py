"""One reply's way from the engine's events to the sink. Owns what was shown so far and the numbers of the reply.

Receives a lane's fence, runs one attempt at a time. Does not queue, does not retry; the caller may try again as long
as nothing was shown.
"""

import time

import msgspec
from opentelemetry.trace import Span, SpanKind, set_span_in_context

from contracts import telemetry as names
from contracts.errors import EngineLost, ServiceError, StaleLease
from contracts.generate import Accepted, Event, Failed, Fence, Finished, GenerateRequest, Prefill, Tokens
from contracts.observability import inject_context
from gateway.admission import Admission, mark_failed
from gateway.clients.engine import EngineClient, EngineStream, engine_error
from gateway.heartbeat import Heartbeat
from gateway.instruments import Instruments, ReplyTimes
from gateway.reply import ReplyDelta, ReplyEnd, ReplySink, ReplyStart, ReplyUsage
from gateway.request_context import RequestContext
from gateway.text.reply_text import ReplyText


class Generation:
    """One reply; has_tokens turns true with the first token, from then on a failed attempt cannot be repeated."""

    def __init__(
        self, admission: Admission, sink: ReplySink, beat: Heartbeat, context: RequestContext, instruments: Instruments
    ) -> None:
        self._admission = admission
        self._sink = sink
        self._beat = beat
        self._context = context
        self._instruments = instruments
        self._text = ReplyText(
            admission.model.text.tokenizer,
            stop_ids=frozenset(admission.generate.stop_token_ids),
            stops=admission.request.stop,
            with_choices=admission.request.logprobs is not None,
        )
        self._cached_tokens = 0
        self._started = False
        self._num_attempts = 0
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        self.queue_s = 0.0
        self.engine_s = 0.0

    @property
    def has_tokens(self) -> bool:
        """Whether tokens came, shown or not."""
        return self._first_token_s is not None

    async def attempt(self, engine: EngineClient, fence: Fence) -> tuple[ReplyEnd, EngineStream]:
        """Run to the reply's end; the returned stream is over and may be drained.

        Raises: what ended the attempt otherwise, with the generation cancelled in the engine.
        """
        self._num_attempts += 1
        self._context.phase = "prefill"
        span = self._instruments.tracer.start_span(
            f"{names.SPAN_CHAT} {self._admission.model.text.manifest.name}", kind=SpanKind.CLIENT
        )
        started_s = time.monotonic()
        try:
            headers: dict[str, str] = {}
            inject_context(headers, set_span_in_context(span))
            stream = engine.generate(self._request(fence), headers)
            try:
                end = await self._follow(stream)
            finally:
                stream.close()
            self._describe(span, end)
            return end, stream
        except ServiceError as error:
            mark_failed(span, error.code)
            raise
        finally:
            self.engine_s += time.monotonic() - started_s
            span.end()

    def record(self, ended_s: float) -> None:
        """Book the finished reply; ended_s is when its last byte was sent."""
        times = ReplyTimes(
            arrived_s=self._context.arrived_s,
            tokenize_s=self._admission.tokenize_s,
            queue_s=self.queue_s,
            engine_s=self.engine_s,
            first_token_s=self._first_token_s,
            last_token_s=self._last_token_s,
        )
        self._instruments.record_reply(times, self._usage, ended_s)

    def _request(self, fence: Fence) -> GenerateRequest:
        request = self._admission.generate
        number = "" if self._num_attempts == 1 else f".{self._num_attempts}"
        return msgspec.structs.replace(request, fence=fence, request_id=request.request_id + number)

    async def _follow(self, stream: EngineStream) -> ReplyEnd:
        while True:
            events = await stream.read(self._beat.due_in_s)
            if not events:
                await self._beat.beat()
                continue
            end = self._take(events)
            if isinstance(end, ReplyEnd):
                self._sink.end(end)
            if self._sink.has_notes:
                await self._sink.flush()
                self._beat.sent()
            if isinstance(end, ServiceError):
                raise end
            if end is not None:
                return end

    def _take(self, events: list[Event]) -> ReplyEnd | ServiceError | None:
        """Note what came, up to the end. A failure is returned, so that the tokens before it are still shown."""
        deltas: list[ReplyDelta | None] = []
        end: ReplyEnd | ServiceError | None = None
        for event in events:
            match event:
                case Tokens():
                    deltas.append(self._take_tokens(event))
                    if self._text.stop_string is not None:
                        end = self._end_by_stop_string()
                        break
                case Accepted():
                    self._start(event)
                case Prefill():
                    pass  # not shown; the heartbeat tells the client that its request lives
                case Finished():
                    deltas.append(self._text.finish())
                    end = self._end(event)
                case Failed():
                    end = engine_error(event)
        self._show([delta for delta in deltas if delta is not None])
        return end

    def _start(self, accepted: Accepted) -> None:
        self._cached_tokens = accepted.cached_tokens
        if not self._started:
            self._started = True
            self._sink.start(ReplyStart(self._admission.budget.prompt_tokens, accepted.cached_tokens, self.queue_s))

    def _take_tokens(self, tokens: Tokens) -> ReplyDelta | None:
        self._last_token_s = time.monotonic()
        if self._first_token_s is None:
            self._first_token_s = self._last_token_s
            self._context.phase = "decode"
        return self._text.feed(tokens)

    def _show(self, deltas: list[ReplyDelta]) -> None:
        if len(deltas) == 1:
            self._sink.delta(deltas[0])
        elif deltas:
            choices = tuple(choice for delta in deltas for choice in delta.choices)
            self._sink.delta(ReplyDelta("".join(delta.text for delta in deltas), choices))

    def _end_by_stop_string(self) -> ReplyEnd:
        self._usage = ReplyUsage(self._admission.budget.prompt_tokens, self._cached_tokens, self._text.num_tokens)
        return ReplyEnd("stop", self._usage, self._text.stop_string)

    def _end(self, finished: Finished) -> ReplyEnd | ServiceError:
        if finished.reason == "cancelled":
            return EngineLost("the engine cancelled the request")
        if finished.reason == "preempted":
            return StaleLease("the lane was given to another request")
        usage = finished.usage
        self._usage = ReplyUsage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        if self._text.stop_string is not None:
            return ReplyEnd("stop", self._usage, self._text.stop_string)
        return ReplyEnd(finished.reason, self._usage)

    def _describe(self, span: Span, end: ReplyEnd) -> None:
        if not span.is_recording():
            return
        request = self._admission.generate
        span.set_attributes(
            {
                names.GEN_AI_OPERATION: names.SPAN_CHAT,
                names.GEN_AI_PROVIDER: names.PROVIDER,
                names.GEN_AI_REQUEST_MODEL: self._admission.request.model,
                names.GEN_AI_REQUEST_MAX_TOKENS: request.max_new_tokens,
                names.GEN_AI_REQUEST_TEMPERATURE: request.sampling.temperature,
                names.GEN_AI_REQUEST_TOP_P: request.sampling.top_p,
                names.GEN_AI_REQUEST_TOP_K: request.sampling.top_k,
                names.GEN_AI_REQUEST_SEED: request.sampling.seed,
                names.GEN_AI_RESPONSE_ID: self._context.request_id,
                names.GEN_AI_RESPONSE_MODEL: self._admission.model.text.manifest.name,
                names.GEN_AI_RESPONSE_FINISH_REASONS: (end.reason,),
                names.GEN_AI_USAGE_INPUT_TOKENS: end.usage.prompt_tokens,
                names.GEN_AI_USAGE_OUTPUT_TOKENS: end.usage.completion_tokens,
                names.GEN_AI_USAGE_CACHE_READ: end.usage.cached_tokens,
            }
        )
        if self._first_token_s is not None:
            waited_s = self._first_token_s - self._context.arrived_s
            span.set_attribute(names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, waited_s)
