"""An executor without a model: state and rows are checksums, so a wrong row, state or mode anywhere changes all logits.

Owns the strictness: it refuses calls that the protocol does not allow. Logits mostly depend on the last id, so that
drafters have something to guess, and a little on everything before.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.runtime.executor import Hidden, Logits

VOCAB = 24
_GUESSABLE, _REST = 4.0, 0.7


@dataclass(frozen=True)
class ToyImage:
    """What a snapshot holds."""

    position: int
    state: int
    num_bytes: int = 100
    finite: bool = True

    def is_finite(self) -> bool:
        return self.finite


class ToyExecutor:
    """can_rewind False is a model with recurrent state. modal: chunk, tail and step give different bits."""

    name = "toy"
    shares_columns = True

    def __init__(
        self, num_positions: int, *, can_rewind: bool = True, modal: bool = False, max_columns: int = 6
    ) -> None:
        self.can_rewind = can_rewind
        self.max_columns = max_columns
        self._modal = modal
        self._rows: NDArray[np.uint32] = np.zeros(num_positions, dtype=np.uint32)
        self._state = 0
        self._round: list[int] | None = None  # states before each column of a step_many that is not rolled back yet
        self._num_drafted = 0
        self._last_id = 0
        self.num_tokens = 0
        self.is_poisoned_at: int | None = None  # the position whose logits, and the state behind it, are not finite
        self.rest = _REST  # how much of the logits a drafter cannot know
        self.drafts_before_nan: int | None = None
        self.num_computed = 0
        self.num_restored = 0

    @property
    def mtp(self) -> "ToyExecutor":
        return self

    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool) -> Logits | None:
        whole = self.num_tokens % 64 == 0 and len(ids) % 64 == 0
        assert whole or self.num_tokens // 64 == (self.num_tokens + len(ids) - 1) // 64, "a span crosses the grid"
        for token_id in ids:
            self._compute(int(token_id), 1 if whole else 2)
        return self._logits() if want_logits else None

    def step(self, token_id: int) -> Logits:
        self._compute(token_id, 3)
        return self._logits()

    def step_many(self, ids: NDArray[np.int64]) -> Logits:
        assert 1 <= len(ids) <= self.max_columns
        states, rows = [], []
        for token_id in ids:
            states.append(self._state)
            self._compute(int(token_id), 3)
            rows.append(self._logits())
        self._round = [*states, self._state]
        return np.stack(rows)

    def rollback(self, num_kept: int) -> None:
        assert self._round is not None, "rollback without step_many"
        num_columns = len(self._round) - 1
        assert 0 <= num_kept <= num_columns
        self._state = self._round[num_kept]
        self._rows[self.num_tokens - num_columns + num_kept : self.num_tokens] = 0xDEAD
        self.num_tokens += num_kept - num_columns
        self._round = None

    def rewind(self, num_tokens: int) -> int:
        if num_tokens == 0:
            self._round = None
        self._require_settled()
        assert num_tokens <= self.num_tokens
        if self.can_rewind:
            self._state = self._replay(num_tokens)
            self.num_tokens = num_tokens
        elif num_tokens != self.num_tokens:
            self.num_tokens = self._state = 0
        return self.num_tokens

    def snapshot(self) -> ToyImage:
        self._require_settled()
        poisoned = self.is_poisoned_at is not None and self.num_tokens > self.is_poisoned_at
        return ToyImage(self.num_tokens, self._state, finite=not poisoned)

    def restore(self, image: Any) -> None:
        self._require_settled()
        assert image.finite
        self.num_tokens, self._state = image.position, image.state
        self.num_restored += 1

    @property
    def hidden(self) -> Hidden:
        self._require_settled()
        self._num_drafted = 0
        return np.array([self.num_tokens], dtype=np.float32)

    def draft_logits(self, hidden: Hidden, token_id: int) -> tuple[Logits, Hidden]:
        assert int(hidden[0]) == self.num_tokens + self._num_drafted, "hidden of another position"
        self._num_drafted += 1
        logits = _GUESSABLE * _noise(token_id)
        if self.drafts_before_nan is not None and self._num_drafted > self.drafts_before_nan:
            logits[0] = np.nan
        return logits, hidden + 1

    def _require_settled(self) -> None:
        assert self._round is None, "step_many was not followed by rollback"

    def _compute(self, token_id: int, mode: int) -> None:
        self._require_settled()
        self._state = zlib.crc32(bytes((token_id, mode if self._modal else 0)), self._state)
        self._rows[self.num_tokens] = self._state ^ 0x5A5A
        self._last_id = token_id
        self.num_tokens += 1
        self.num_computed += 1

    def _logits(self) -> Logits:
        rows = zlib.crc32(self._rows[: self.num_tokens].tobytes())
        logits = _GUESSABLE * _noise(self._last_id) + self.rest * _noise(rows ^ self._state)
        if self.is_poisoned_at is not None and self.num_tokens > self.is_poisoned_at:
            logits[3] = np.nan
        return logits

    def _replay(self, num_tokens: int) -> int:
        return int(self._rows[num_tokens - 1]) ^ 0x5A5A if num_tokens else 0


def _noise(seed: int) -> Logits:
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32)
