"""The life of one request on the sequence: accepted, prefill, tokens, finished. Owns this order and the numbers.

Receives a validated Job and the live sequence, yields contract events, the last of which is Finished; anything else
that ends it is an exception. It knows no queue, no fence and no thread.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contracts.errors import NumericalError, ServiceError
from contracts.generate import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    Prefill,
    Timings,
    Tokens,
    Usage,
)
from engine.runtime.executor import Logits
from engine.runtime.interrupt import Interrupt
from engine.runtime.sampler import Draw, Sampler


class LiveSequence(Protocol):
    """The one sequence of the engine, as a request uses it."""

    def sync(self, ids: NDArray[np.int64]) -> int:
        """Keep what ids share with the sequence, drop the rest; returns how many positions are kept, below len(ids)."""

    def prefill(self, ids: NDArray[np.int64], output_start: int) -> Iterator[int]:
        """Compute what sync did not keep; yields the number of computed positions after every span."""

    @property
    def logits(self) -> Logits:
        """Logits behind the last position, after prefill."""

    def advance(self, token_id: int) -> Logits:
        """Append a token; returns the logits behind it."""

    def drop(self) -> None:
        """Forget everything: the state cannot be trusted."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request that passed validation.

    max_tokens counts output from output_start on and is clamped to the window; arrived_s is monotonic.
    """

    request: GenerateRequest
    ids: NDArray[np.int64]
    output_start: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    interrupt: Interrupt
    arrived_s: float


class Generation:
    """Runs one job; the counts may be read while and after it runs."""

    def __init__(self, job: Job, sequence: LiveSequence, vocab_size: int) -> None:
        self._job = job
        self._sequence = sequence
        self._vocab_size = vocab_size
        self._num_output = len(job.ids) - job.output_start
        self._started_s = time.monotonic()
        self._first_token_s: float | None = None
        self.num_cached = 0
        self.num_computed = 0
        self.num_new = 0
        self.prefill_s = 0.0
        self.decode_s = 0.0

    def run(self) -> Iterator[Event]:
        """Every event of the request in order.

        Raises: NumericalError, after dropping the sequence; the error that the interrupt holds.
        """
        job = self._job
        self.num_cached = self._sequence.sync(job.ids)
        yield Accepted(cached_tokens=self._cached_prompt, tier="device" if self.num_cached else "none", restore_ms=0.0)
        reason = self._ended_before()
        if reason is None:
            reason = yield from self._prefill()
        if reason is None:
            reason = yield from self._decode()
        yield Finished(reason, self._usage(), self._timings())

    @property
    def _cached_prompt(self) -> int:
        return min(self.num_cached, self._job.output_start)

    def _ended_before(self) -> FinishReason | None:
        """Why a resumed request has nothing left to generate."""
        job = self._job
        if self._num_output and int(job.ids[-1]) in job.stop_token_ids:
            return "stop"
        return "length" if self._num_output >= job.max_tokens else self._interrupted()

    def _interrupted(self) -> FinishReason | None:
        ending = self._job.interrupt.ending
        if isinstance(ending, ServiceError):
            raise ending
        return ending

    def _prefill(self) -> Generator[Event, None, FinishReason | None]:
        job = self._job
        total = len(job.ids) - self.num_cached
        started_s = time.monotonic()
        for num_computed in self._sequence.prefill(job.ids, job.output_start):
            self.num_computed = num_computed
            self.prefill_s = time.monotonic() - started_s
            yield Prefill(num_computed, total)
            reason = self._interrupted()
            if reason is not None:
                return reason
        return None

    def _decode(self) -> Generator[Event, None, FinishReason]:
        job = self._job
        request = job.request
        sampler = Sampler(request.sampling, request.token_ids, job.output_start, self._vocab_size, request.logprobs)
        logits = self._sequence.logits
        started_s = time.monotonic()
        while True:
            draw = self._draw(sampler, logits)
            self._num_output += 1
            self.num_new += 1
            self.decode_s = time.monotonic() - started_s
            if self._first_token_s is None:
                self._first_token_s = time.monotonic()
            yield Tokens([draw.token_id], None if draw.logprob is None else [draw.logprob])
            if draw.token_id in job.stop_token_ids:
                return "stop"
            if self._num_output >= job.max_tokens:
                return "length"
            reason = self._interrupted()
            if reason is not None:
                return reason
            logits = self._sequence.advance(draw.token_id)

    def _draw(self, sampler: Sampler, logits: Logits) -> Draw:
        try:
            draw = sampler.draw(logits, self._job.output_start + self._num_output)
        except NumericalError:
            self._sequence.drop()
            raise
        sampler.commit(draw.token_id)
        return draw

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._job.output_start,
            cached_tokens=self._cached_prompt,
            completion_tokens=self._num_output,
        )

    def _timings(self) -> Timings:
        arrived_s, first_s = self._job.arrived_s, self._first_token_s
        return Timings(
            queue_ms=1e3 * (self._started_s - arrived_s),
            restore_ms=0.0,
            prefill_ms=1e3 * self.prefill_s,
            decode_ms=1e3 * self.decode_s,
            ttft_ms=None if first_s is None else 1e3 * (first_s - arrived_s),
        )
