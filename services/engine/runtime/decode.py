"""Rounds of a reply: draft, verify, keep. Owns which tokens a round gives and what ends the reply.

Receives the live sequence behind a prefill, a sampler and a speculation; hands on drawn tokens. It yields no events and
looks at no interrupt: between two rounds the caller may stop, and the sequence then stands where the tokens end.

The last token of a round is drawn but not computed. The next round computes it with its drafts behind it in one call;
column j gives the token behind draft j, drawn with counts that include the drafts before it. A draft holds iff it is
that token, so the reply does not depend on drafts. Columns behind the first wrong draft are rolled back unread.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contracts.errors import NumericalError
from contracts.generate import FinishReason, Guard
from engine.runtime.executor import Logits
from engine.runtime.job import Job
from engine.runtime.repetition import RepetitionGuard
from engine.runtime.sampler import Draw, Sampler
from engine.runtime.speculate import DraftCounts, Speculation


class DecodedSequence(Protocol):
    """The live sequence as a reply extends it."""

    @property
    def logits(self) -> Logits:
        """Logits behind the last position, after prefill."""

    def advance(self, token_id: int) -> Logits:
        """Append a token; returns the logits behind it."""

    def advance_many(self, token_ids: list[int]) -> Logits:
        """Append tokens; returns the logits behind each [M, vocab]. keep must follow."""

    def keep(self, num_tokens: int) -> None:
        """Of the tokens of the last advance_many only the first num_tokens belong to the sequence."""


@dataclass(frozen=True, slots=True)
class End:
    """Why a reply is over; guard when the engine decided it."""

    reason: FinishReason
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens of one round, at least one, and what ends the reply with the last of them."""

    draws: list[Draw]
    end: End | None


class Decoding:
    """One reply, a round at a time; what it counts may be read while it runs."""

    def __init__(self, job: Job, vocab_size: int, speculation: Speculation) -> None:
        """Output that a resumed request brings is the beginning of the reply."""
        self._job = job
        self._vocab_size = vocab_size
        self._speculation = speculation
        self._ids: NDArray[np.int64] = np.empty(max(len(job.ids), job.output_start + job.max_tokens), dtype=np.int64)
        self._ids[: len(job.ids)] = job.ids
        self._num_ids = len(job.ids)
        self._guard = RepetitionGuard(job.ids[job.output_start :]) if job.guards_repetition else None
        self._failure: NumericalError | None = None
        self.drafts = DraftCounts()

    @property
    def num_output(self) -> int:
        """Tokens of the reply so far."""
        return self._num_ids - self._job.output_start

    def end(self) -> End | None:
        """Why the reply is over with its last token, None when it goes on."""
        if self.num_output and int(self._ids[self._num_ids - 1]) in self._job.stop_token_ids:
            return End("stop")
        if self.num_output >= self._job.max_tokens:
            return End("length")
        return End("stop", "repetition") if self._guard is not None and self._guard.triggered else None

    def rounds(self, sequence: DecodedSequence) -> Iterator[Round]:
        """Every round; the last one has an end.

        Raises: NumericalError in place of a token whose logits are not finite.
        """
        request = self._job.request
        sampler = Sampler(
            request.sampling, request.token_ids, self._job.output_start, self._vocab_size, request.logprobs
        )
        this = self._take(sampler, sequence.logits[None], [])
        while this.end is None:
            yield self._require_tokens(this)
            this = self._run_round(sequence, sampler)
        yield this

    def _run_round(self, sequence: DecodedSequence, sampler: Sampler) -> Round:
        job, started_s = self._job, time.monotonic()
        known = self._ids[: self._num_ids]
        num_wanted = job.max_tokens - self.num_output - 1  # the last token needs no draft
        drafts = self._speculation.propose(known, sampler, num_wanted, job.stop_token_ids)
        if drafts:
            rows = sequence.advance_many([int(known[-1]), *drafts])
            this = self._take(sampler, rows, drafts)
            sequence.keep(len(this.draws))
            self.drafts.add(len(drafts), _num_accepted(this.draws, drafts))
        else:
            this = self._take(sampler, sequence.advance(int(known[-1]))[None], drafts)
        if this.draws and this.end is None:
            self._speculation.record(len(drafts), len(this.draws), time.monotonic() - started_s)
        return this

    def _take(self, sampler: Sampler, rows: Logits, drafts: list[int]) -> Round:
        """Draw from row after row while the drafts hold and nothing ends the reply; row j lies behind j drafts.

        A row that is not finite ends the round. The tokens before it are good, so it fails the reply only when it is
        the first row of a round: where it would have failed without drafts.
        """
        draws: list[Draw] = []
        end = None
        for column, logits in enumerate(rows):
            try:
                draw = sampler.draw(logits, self._num_ids)
            except NumericalError as error:
                self._failure = error
                break
            sampler.commit(draw.token_id)
            self._append(draw.token_id)
            draws.append(draw)
            end = self.end()
            if end is not None or column == len(drafts) or draw.token_id != drafts[column]:
                break
        return Round(draws, end)

    def _require_tokens(self, this: Round) -> Round:
        if not this.draws:
            assert self._failure is not None
            raise self._failure
        return this

    def _append(self, token_id: int) -> None:
        self._ids[self._num_ids] = token_id
        self._num_ids += 1
        if self._guard is not None:
            self._guard.feed(token_id)


def _num_accepted(draws: list[Draw], drafts: list[int]) -> int:
    """Drafts, from the first on, that are the token drawn in their place."""
    accepted = 0
    for draw, draft in zip(draws, drafts, strict=False):
        if draw.token_id != draft:
            break
        accepted += 1
    return accepted
