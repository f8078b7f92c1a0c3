"""Steps 1 and 2 of the sample contract on the logits of a few ids. Owns the arithmetic; counts are the caller's."""

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]


def penalize_repetition(logits: Logits, ids: Ids, penalty: float) -> None:
    """Weaken ids that occurred before. Effects: changes logits in place. Domain: ids distinct, penalty > 0."""
    chosen = logits[ids]
    factor = np.float32(penalty)
    logits[ids] = np.where(chosen > 0, chosen / factor, chosen * factor)


def penalize_output(logits: Logits, ids: Ids, counts: NDArray[np.int32], frequency: float, presence: float) -> None:
    """Subtract frequency * count + presence. Effects: changes logits in place. Domain: ids distinct, counts >= 1."""
    logits[ids] -= np.float32(frequency) * counts.astype(np.float32) + np.float32(presence)


def add_bias(logits: Logits, ids: Ids, bias: NDArray[np.float32]) -> None:
    """Add bias[i] to logits[ids[i]]. Effects: changes logits in place. Domain: ids distinct."""
    logits[ids] += bias
