"""Drafters that no engine should have: random guesses, always wrong ones, always right ones."""

# ruff: noqa: ARG002 - the protocol's arguments

import numpy as np
from numpy.typing import NDArray

from engine.runtime.drafter import Guesser


class RandomDrafter:
    """Guesses, and guesses how many."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def draft(self, ids: NDArray[np.int64], guesser: Guesser, num_drafts: int) -> list[int]:
        count = int(self._rng.integers(0, num_drafts + 1))
        return self._rng.integers(0, self._vocab_size, count).tolist()


class OracleDrafter:
    """Knows the whole text; with an offset it is wrong everywhere."""

    def __init__(self, text: list[int], vocab_size: int, offset: int = 0) -> None:
        self._text = text
        self._vocab_size = vocab_size
        self._offset = offset

    def draft(self, ids: NDArray[np.int64], guesser: Guesser, num_drafts: int) -> list[int]:
        following = self._text[len(ids) : len(ids) + num_drafts]
        return [(token_id + self._offset) % self._vocab_size for token_id in following]


class HalfRightDrafter(OracleDrafter):
    """Right for a number of drafts that changes from round to round, then wrong: every accepted length comes up."""

    def __init__(self, text: list[int], vocab_size: int) -> None:
        super().__init__(text, vocab_size)
        self._rng = np.random.default_rng(3)

    def draft(self, ids: NDArray[np.int64], guesser: Guesser, num_drafts: int) -> list[int]:
        following = self._text[len(ids) : len(ids) + num_drafts]
        right = int(self._rng.integers(0, num_drafts + 1))
        return [(token_id + (index >= right)) % self._vocab_size for index, token_id in enumerate(following)]
