"""The guard against a reply that only repeats itself. Owns when that is so; ending the reply is the caller's.

Formula: the last L ids of the output are periodic with period P <= 512, and L >= max(1024, min(64 P, 4096)): one block
         of tokens, identical to the last id, 64 times over and 1,024 tokens long, or 4,096 tokens long.
Source:  none; the numbers are meant to be out of reach of code and tables people ask for (docs/notes/speculation.md).

A function of the output's ids alone: the same for a resumed reply, and for tokens that came one by one or in rounds.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 512
_MIN_TOKENS = 1024
_MIN_REPEATS = 64
_ENOUGH_TOKENS = 4096  # whatever the period

_PERIODS: Final[NDArray[np.int64]] = np.arange(MAX_PERIOD, 0, -1)
_REQUIRED_TOKENS: Final[NDArray[np.int64]] = np.maximum(
    _MIN_TOKENS, np.minimum(_MIN_REPEATS * _PERIODS, _ENOUGH_TOKENS)
)
_BUFFER_TOKENS = 16 * MAX_PERIOD


class RepetitionGuard:
    """Fed with every id of the output in order."""

    def __init__(self, output: Sequence[int] | NDArray[np.int64] = ()) -> None:
        """output is what a resumed reply has so far."""
        self._recent: NDArray[np.int64] = np.full(_BUFFER_TOKENS, -1, dtype=np.int64)  # the last ids end at _end
        self._end = MAX_PERIOD
        self._runs: NDArray[np.int64] = np.zeros(MAX_PERIOD, dtype=np.int64)  # ids in a row equal to the one P before
        self.triggered = False
        for token_id in output[-(_ENOUGH_TOKENS + MAX_PERIOD) :]:  # older ids cannot matter
            self.feed(int(token_id))

    def feed(self, token_id: int) -> bool:
        """Take the next id; returns whether the output repeats itself now."""
        if self._end == _BUFFER_TOKENS:
            self._recent[:MAX_PERIOD] = self._recent[-MAX_PERIOD:]
            self._end = MAX_PERIOD
        before = self._recent[self._end - MAX_PERIOD : self._end]  # index i is _PERIODS[i] ids back
        self._runs += 1
        self._runs *= before == token_id
        self._recent[self._end] = token_id
        self._end += 1
        self.triggered = bool((self._runs + _PERIODS >= _REQUIRED_TOKENS).any())
        return self.triggered
