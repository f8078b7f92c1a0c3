"""Log-probabilities of the distribution as the model gives it, before any filter. Owns the normalisation and ties."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms; top has the likeliest (id, logprob), likeliest first, the lower id where two are equal."""

    chosen: float
    top: list[tuple[int, float]]


def measure_logprobs(logits: NDArray[np.float32], token_id: int, num_top: int) -> Logprobs:
    """Log-probability of one id and of the num_top likeliest.

    Numeric: normalised in fp64.
    """
    largest = np.float64(logits.max())
    log_total = largest + np.log(np.exp(logits - largest).sum())
    top = _largest(logits, num_top)
    return Logprobs(float(logits[token_id] - log_total), [(int(i), float(logits[i] - log_total)) for i in top])


def _largest(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    if count == 0:
        return np.empty(0, dtype=np.int64)
    count = min(count, len(logits))
    threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
    candidates = np.flatnonzero(logits >= threshold)
    return candidates[np.argsort(-logits[candidates], kind="stable")][:count]
