"""What the speed benchmark compares: something that prefills and decodes. Owns the shapes of work and of absence."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Work:
    """One round: a prompt to prefill, and a short prompt to decode num_new_tokens behind. Prompts differ per round."""

    prefill_ids: NDArray[np.int64]
    decode_ids: NDArray[np.int64]
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that cannot be measured here, and why."""

    reason: str


class Contender(Protocol):
    """Runs one kind of work and says how long it took; nothing of an earlier round may help."""

    def prefill_tok_s(self, work: Work) -> float:
        """Prompt tokens a second, from handing over the prompt to the logits behind it."""

    def decode_tok_s(self, work: Work) -> float:
        """Generated tokens a second, the first one not counted."""
