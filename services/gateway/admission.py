"""Letting a request in: prompt ids, exact budget, sampling with its seed, cost. Owns everything before the queue.

Receives a ChatRequest, hands on an Admission that the engine could run as it is. Refuses what does not fit before a
single byte was answered. Does not wait for the lane.
"""

import asyncio
import secrets
import time
from dataclasses import dataclass

from opentelemetry.trace import Span, Status, StatusCode

from contracts import telemetry as names
from contracts.errors import ContextTooLong, InvalidRequest, ServiceError
from contracts.generate import GenerateRequest
from gateway.budget import Budget, estimate_cost_s, plan_budget
from gateway.conversation import ChatRequest
from gateway.identity import Identity
from gateway.instruments import Instruments
from gateway.readiness import ReadyModel
from gateway.request_context import RequestContext

# Shorter prompts take a few milliseconds at most; a thread would cost them more than they block.
_INLINE_CHARS = 16_000
_MESSAGE_CHARS = 32  # what a message costs besides its text
_SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that may queue; generate lacks only the fence. cost_s is the estimate in engine-seconds."""

    request: ChatRequest
    generate: GenerateRequest
    model: ReadyModel
    budget: Budget
    identity: Identity
    cost_s: float
    tokenize_s: float


class Admitter:
    """Turns requests into admissions."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._tracer = instruments.tracer

    async def admit(
        self, request: ChatRequest, model: ReadyModel, identity: Identity, context: RequestContext
    ) -> Admission:
        """Raises: InvalidRequest, ContextTooLong."""
        with self._tracer.start_as_current_span(names.SPAN_ADMIT, record_exception=False) as span:
            try:
                return await self._admit(request, model, identity, context, span)
            except ServiceError as error:
                reason = "context" if isinstance(error, ContextTooLong) else "invalid"
                self._instruments.count_admission("rejected", reason)
                raise

    async def _admit(
        self, request: ChatRequest, model: ReadyModel, identity: Identity, context: RequestContext, span: Span
    ) -> Admission:
        _check_bias(request, model.info.vocab_size)
        ids, tokenize_s = await self._encode(request, model)
        budget = plan_budget(len(ids), model.info.context_limit, request.max_tokens)
        span.set_attribute(names.TOKENS_PROMPT, budget.prompt_tokens)
        span.set_attribute(names.TOKENS_LIMIT, budget.window)
        span.set_attribute(names.TOKENS_CLAMPED, budget.clamped)
        self._instruments.count_admission("clamped" if budget.clamped else "admitted", "fits")
        sampling = request.sampling.resolve(model.text.manifest.default_sampling, secrets.randbits(_SEED_BITS))
        generate = GenerateRequest(
            request_id=context.request_id,
            token_ids=ids,
            max_new_tokens=budget.max_new_tokens,
            stop_token_ids=model.info.stop_token_ids,
            sampling=sampling,
            logprobs=request.logprobs,
        )
        cost_s = estimate_cost_s(budget, model.info.rates)
        return Admission(request, generate, model, budget, identity, cost_s, tokenize_s)

    async def _encode(self, request: ChatRequest, model: ReadyModel) -> tuple[list[int], float]:
        num_chars = sum(_MESSAGE_CHARS + sum(map(len, message.parts)) for message in request.messages)
        encode, window = model.text.prompt.encode, model.info.context_limit
        with self._tracer.start_as_current_span(names.SPAN_TOKENIZE, record_exception=False) as span:
            started_s = time.monotonic()
            if num_chars <= _INLINE_CHARS:
                ids = encode(request.messages, window)
            else:
                ids = await asyncio.to_thread(encode, request.messages, window)
            tokenize_s = time.monotonic() - started_s
            span.set_attribute(names.TOKENS_PROMPT, len(ids))
        self._instruments.record_tokenize(tokenize_s)
        return ids, tokenize_s


def mark_failed(span: Span, code: str) -> None:
    """Give a span the error it ended with."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(names.ERROR_TYPE, code)


def _check_bias(request: ChatRequest, vocab_size: int) -> None:
    for token_id in request.sampling.logit_bias or ():
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"logit_bias names token {token_id}, the vocabulary has {vocab_size}", param="logit_bias"
            )
