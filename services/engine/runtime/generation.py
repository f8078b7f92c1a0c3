"""The life of one request on the sequence: accepted, prefill, tokens, finished. Owns this order and the numbers.

Receives a validated Job and the live sequence, yields contract events, the last of which is Finished; anything else
that ends it is an exception. It knows no queue, no fence and no thread.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contracts.errors import NumericalError, ServiceError
from contracts.generate import Accepted, Event, Finished, Prefill, Tier, Timings, Tokens, Usage
from engine.runtime.decode import DecodedSequence, Decoding, End, Round
from engine.runtime.job import Job
from engine.runtime.speculate import Speculation


class LiveSequence(DecodedSequence, Protocol):
    """The one sequence of the engine, as a request uses it."""

    @property
    def restore_s(self) -> float:
        """Seconds the last sync spent on putting a state back from host memory, 0 when it did not."""

    def sync(self, ids: NDArray[np.int64]) -> int:
        """Keep what ids share with the sequence, drop the rest; returns how many positions are kept, below len(ids)."""

    def prefill(self, ids: NDArray[np.int64], output_start: int, worth_keeping: Sequence[int]) -> Iterator[int]:
        """Compute what sync did not keep; yields the number of computed positions after every span."""

    def pause(self) -> None:
        """The request leaves the sequence where it stands; it may be wanted again from there."""

    def drop(self) -> None:
        """Forget everything: the state cannot be trusted."""


class Generation:
    """Runs one job; the counts may be read while and after it runs."""

    def __init__(self, job: Job, sequence: LiveSequence, vocab_size: int, speculation: Speculation) -> None:
        self._job = job
        self._sequence = sequence
        self._decoding = Decoding(job, vocab_size, speculation)
        self._started_s = time.monotonic()
        self._first_token_s: float | None = None
        self._restore_ms = 0.0
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
        self._restore_ms = 1e3 * self._sequence.restore_s
        yield Accepted(self._cached_prompt, self._tier, self._restore_ms)
        end = self._decoding.end() or self._interrupted()  # a resumed request may have nothing left to generate
        try:
            if end is None:
                end = yield from self._prefill()
            if end is None:
                end = yield from self._decode()
        except NumericalError:
            self._sequence.drop()
            raise
        self._sequence.pause()
        yield Finished(end.reason, self._usage(), self._timings(), guard=end.guard)

    @property
    def _tier(self) -> Tier:
        """Where the reused state came from; keys and values are on the device in every case."""
        if self.num_cached == 0:
            return "none"
        return "host" if self._restore_ms else "device"

    @property
    def _cached_prompt(self) -> int:
        return min(self.num_cached, self._job.output_start)

    def _interrupted(self) -> End | None:
        ending = self._job.interrupt.ending
        if isinstance(ending, ServiceError):
            raise ending
        return None if ending is None else End(ending)

    def _prefill(self) -> Generator[Event, None, End | None]:
        job = self._job
        total = len(job.ids) - self.num_cached
        started_s = time.monotonic()
        for num_computed in self._sequence.prefill(job.ids, job.output_start, job.request.checkpoints):
            self.num_computed = num_computed
            self.prefill_s = time.monotonic() - started_s
            yield Prefill(num_computed, total)
            end = self._interrupted()
            if end is not None:
                return end
        return None

    def _decode(self) -> Generator[Event, None, End]:
        started_s = time.monotonic()
        for this in self._decoding.rounds(self._sequence):
            self.num_new += len(this.draws)
            self.decode_s = time.monotonic() - started_s
            if self._first_token_s is None:
                self._first_token_s = time.monotonic()
            yield _tokens(this)
            end = this.end or self._interrupted()
            if end is not None:
                return end
        raise AssertionError("a reply ended without an end")

    def _usage(self) -> Usage:
        drafts = self._decoding.drafts
        return Usage(
            prompt_tokens=self._job.output_start,
            cached_tokens=self._cached_prompt,
            completion_tokens=self._decoding.num_output,
            drafted_tokens=sum(drafts.drafted),
            accepted_tokens=sum(drafts.accepted),
            drafted_by_position=drafts.drafted,
            accepted_by_position=drafts.accepted,
        )

    def _timings(self) -> Timings:
        arrived_s, first_s = self._job.arrived_s, self._first_token_s
        return Timings(
            queue_ms=1e3 * (self._started_s - arrived_s),
            restore_ms=self._restore_ms,
            prefill_ms=1e3 * self.prefill_s,
            decode_ms=1e3 * self.decode_s,
            ttft_ms=None if first_s is None else 1e3 * (first_s - arrived_s),
        )


def _tokens(this: Round) -> Tokens:
    logprobs = [draw.logprob for draw in this.draws if draw.logprob is not None]
    return Tokens([draw.token_id for draw in this.draws], logprobs or None)
