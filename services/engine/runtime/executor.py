"""What the runtime needs of whatever computes tokens. A fused executor replaces the reference one by this shape."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Executor(Protocol):
    """Computes positions in order and owns their state. Not thread-safe: one worker uses it.

    A position is computed in one of two modes, and its bits are a function of ids and modes alone: prefill for the
    prompt, in spans that prefill.next_span cut on the grid; step for generated tokens.
    """

    @property
    def name(self) -> str:
        """What `/v1/info` calls it."""

    @property
    def num_tokens(self) -> int:
        """Positions whose state is held; the next call computes the position of this number."""

    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool) -> Logits | None:
        """Compute the next len(ids) positions; returns the last one's logits if wanted, valid until the next call."""

    def step(self, token_id: int) -> Logits:
        """Compute the next position; returns its logits, valid until the next call."""

    def rewind(self, num_tokens: int) -> int:
        """Forget every position from num_tokens on.

        Returns the position it got to: num_tokens, or an earlier one where the state can only go back to that.
        """
