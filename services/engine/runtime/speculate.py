"""Speculation: what to draft in a round, if anything. Owns the drafter, the number of drafts and the governor.

Lives as long as the engine, because what pays is learned over requests; a request's counts are its own (DraftCounts).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.runtime.drafter import Drafter, Guesser
from engine.runtime.governor import Governor


class Speculation:
    """Proposes drafts for one round after the other."""

    def __init__(self, drafter: Drafter | None, num_drafts: int, governor: Governor | None = None) -> None:
        """No drafter never drafts; no governor always drafts where the drafter has a guess."""
        self._drafter = drafter
        self._num_drafts = num_drafts
        self._governor = governor

    def propose(
        self, ids: NDArray[np.int64], guesser: Guesser, num_wanted: int, stop_token_ids: frozenset[int]
    ) -> list[int]:
        """Drafts of what follows ids, at most num_wanted; none behind a token that would end the reply."""
        num_drafts = min(self._num_drafts, num_wanted)
        if self._drafter is None or num_drafts <= 0:
            return []
        if self._governor is not None and not self._governor.wants_drafts():
            return []
        drafts = self._drafter.draft(ids, guesser, num_drafts)
        assert len(drafts) <= num_drafts, f"{len(drafts)} drafts, asked for {num_drafts}"
        for index, token_id in enumerate(drafts):
            if token_id in stop_token_ids:
                return drafts[:index]  # the model draws the end itself, the column behind it is of no use
        return drafts

    def record(self, num_drafts: int, num_tokens: int, duration_s: float) -> None:
        """Learn from a round: its drafts, the tokens it gave and its time, drafting included."""
        if self._governor is not None:
            self._governor.record(num_drafts, num_tokens, duration_s)


@dataclass(slots=True)
class DraftCounts:
    """Drafts of one request by their place in the round, the first at index 0."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """One round."""
        missing = num_drafted - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for index in range(num_drafted):
            self.drafted[index] += 1
            self.accepted[index] += index < num_accepted
