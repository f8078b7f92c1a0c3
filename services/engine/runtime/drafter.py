"""Drafters: cheap guesses at the next tokens, which the model then checks in one call. Owns how to guess, nothing else.

A guess is only ever compared with the token the model draws itself, so a drafter cannot change a reply, only its speed.
The better it knows the draw, the more of its guesses hold: the MTP head draws with the request's own noise and filters.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.runtime.executor import Logits, MtpHead

_LONG_MATCH = 3
_SHORT_MATCH = 2


class Guesser(Protocol):
    """The request's sampler, as a drafter that has logits of its own uses it."""

    def guess(self, logits: Logits, position: int) -> int | None:
        """The token these logits give at a position; None when they are not finite."""

    def commit(self, token_id: int) -> None:
        """Count a guess as output, for the guesses behind it."""

    def rollback(self, token_ids: list[int]) -> None:
        """Undo the commits of token_ids."""


class Drafter(Protocol):
    """Guesses what follows."""

    def draft(self, ids: NDArray[np.int64], guesser: Guesser, num_drafts: int) -> list[int]:
        """Up to num_drafts guesses at what follows ids, of which all but the last are computed."""


class NgramDrafter:
    """Repeats what followed the last tokens where they stood before: three of them, else two; the latest such place."""

    def draft(self, ids: NDArray[np.int64], guesser: Guesser, num_drafts: int) -> list[int]:  # noqa: ARG002 - protocol
        """What followed the same tokens earlier; nothing when they never stood there."""
        start = find_continuation(ids)
        return [] if start is None else ids[start : start + num_drafts].tolist()


class MtpDrafter:
    """Guesses with the model's multi-token-prediction head."""

    def __init__(self, head: MtpHead) -> None:
        self._head = head

    def draft(self, ids: NDArray[np.int64], guesser: Guesser, num_drafts: int) -> list[int]:
        """One guess after the other, each from the head's view of those before."""
        hidden, token_id = self._head.hidden, int(ids[-1])
        drafts: list[int] = []
        while len(drafts) < num_drafts:
            logits, hidden = self._head.draft_logits(hidden, token_id)
            guess = guesser.guess(logits, len(ids) + len(drafts))
            if guess is None:
                break
            guesser.commit(guess)
            drafts.append(guess)
            token_id = guess
        guesser.rollback(drafts)
        return drafts


def find_continuation(ids: NDArray[np.int64]) -> int | None:
    """Where the latest earlier place of the last three ids, else of the last two, goes on; None if there is none."""
    if len(ids) <= _SHORT_MATCH:
        return None
    places = _SHORT_MATCH - 1 + np.flatnonzero(ids[_SHORT_MATCH - 1 : -1] == ids[-1])
    places = places[ids[places - 1] == ids[-2]]
    if not len(places):
        return None
    longer = places[places >= _LONG_MATCH - 1]
    longer = longer[ids[longer - 2] == ids[-_LONG_MATCH]]
    return int((longer if len(longer) else places)[-1]) + 1
