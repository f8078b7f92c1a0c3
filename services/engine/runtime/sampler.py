"""A request's sampling: its parameters, what it has seen so far, and the draw of one token. Owns counts, no logits.

Everything the draw depends on is a function of the ids before the position, so a resumed or re-run request draws the
same tokens. rollback undoes commits in reverse, which is what a rejected draft needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contracts.errors import NumericalError
from contracts.generate import Sampling, TokenLogprob
from engine.ops.sample import (
    SampleParams,
    add_bias,
    choose,
    measure_logprobs,
    penalize_output,
    penalize_repetition,
)

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Draw:
    """A token, and its log-probabilities when they were asked for."""

    token_id: int
    logprob: TokenLogprob | None


class Sampler:
    """Draws tokens of one request; commit each one that becomes part of the sequence."""

    def __init__(
        self, sampling: Sampling, ids: Sequence[int], output_start: int, vocab_size: int, num_logprobs: int | None
    ) -> None:
        """ids are the request's, output already generated from output_start on; ids >= vocab_size are never drawn."""
        self._params: Final = SampleParams(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed
        )
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._num_logprobs = num_logprobs
        bias = sorted(sampling.logit_bias.items())
        self._bias_ids = np.array([token_id for token_id, _ in bias], dtype=np.int64)
        self._bias = np.array([value for _, value in bias], dtype=np.float32)
        self._counts_output = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        self._counts_all = sampling.repetition_penalty != 1.0
        self._output = _Occurrences(vocab_size if self._counts_output else 0)
        self._all = _Occurrences(vocab_size if self._counts_all else 0)
        if self._counts_output:
            self._output.add_many(ids[output_start:])
        if self._counts_all:
            self._all.add_many(ids)

    def draw(self, logits: Logits, position: int) -> Draw:
        """The token at a position.

        Shapes:  logits [>= vocab_size] fp32; not changed.
        Raises: NumericalError when a logit is not finite.
        """
        live = logits[: self._vocab_size]
        _require_finite(live, position)
        token_id = choose(self._adjust(live), self._params, position)
        if self._num_logprobs is None:
            return Draw(token_id, None)
        measured = measure_logprobs(live, token_id, self._num_logprobs)
        return Draw(token_id, TokenLogprob(measured.chosen, measured.top))

    def guess(self, logits: Logits, position: int) -> int | None:
        """The token a drafter's logits give at a position, with the noise of that position; None if not finite."""
        live = logits[: self._vocab_size]
        return choose(self._adjust(live), self._params, position) if _is_finite(live) else None

    def commit(self, token_id: int) -> None:
        """The token became part of the output."""
        if self._counts_output:
            self._output.add(token_id)
        if self._counts_all:
            self._all.add(token_id)

    def rollback(self, token_ids: Sequence[int]) -> None:
        """Undo the commits of token_ids, which were the last ones, in this order."""
        for token_id in reversed(token_ids):
            if self._counts_output:
                self._output.remove(token_id)
            if self._counts_all:
                self._all.remove(token_id)

    def _adjust(self, logits: Logits) -> Logits:
        if not (self._counts_output or self._counts_all or len(self._bias)):
            return logits
        adjusted = logits.copy()
        if self._counts_all:
            penalize_repetition(adjusted, self._all.ids, self._sampling.repetition_penalty)
        if self._counts_output:
            ids = self._output.ids
            sampling = self._sampling
            penalize_output(
                adjusted, ids, self._output.counts[ids], sampling.frequency_penalty, sampling.presence_penalty
            )
        if len(self._bias):
            add_bias(adjusted, self._bias_ids, self._bias)
        return adjusted


class _Occurrences:
    """How often each id occurred, and the distinct ids in order of first occurrence."""

    def __init__(self, vocab_size: int) -> None:
        self.counts: NDArray[np.int32] = np.zeros(vocab_size, dtype=np.int32)
        self._ids: NDArray[np.int64] = np.empty(vocab_size, dtype=np.int64)
        self._num_ids = 0

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct ids."""
        return self._ids[: self._num_ids]

    def add_many(self, ids: Sequence[int]) -> None:
        """Add to an empty instance."""
        if not ids:
            return
        distinct, counts = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
        self.counts[distinct] = counts
        self._ids[: len(distinct)] = distinct
        self._num_ids = len(distinct)

    def add(self, token_id: int) -> None:
        """One more."""
        if self.counts[token_id] == 0:
            self._ids[self._num_ids] = token_id
            self._num_ids += 1
        self.counts[token_id] += 1

    def remove(self, token_id: int) -> None:
        """Undo the last add."""
        self.counts[token_id] -= 1
        if self.counts[token_id] == 0:
            self._num_ids -= 1
            assert self._ids[self._num_ids] == token_id, "rollback out of order"


def _is_finite(logits: Logits) -> bool:
    return bool(np.isfinite(logits.min()) and np.isfinite(logits.max()))


def _require_finite(logits: Logits, position: int) -> None:
    if _is_finite(logits):
        return
    num_bad = int(np.count_nonzero(~np.isfinite(logits)))
    raise NumericalError(f"{num_bad} of {len(logits)} logits at position {position} are not finite")
