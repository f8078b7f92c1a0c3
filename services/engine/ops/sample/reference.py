"""Steps 4 to 8 of the sample contract written as they read: sort everything, then drop. The oracle of choose."""

import numpy as np
from numpy.typing import NDArray

from engine.ops.sample.choose import SampleParams
from engine.ops.sample.philox import gumbel_noise


def kept_probabilities(
    logits: NDArray[np.float32], params: SampleParams
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids that survive the filters, likeliest first, and their probabilities after renormalising.

    Domain:  temperature > 0.
    """
    scaled = logits / np.float64(params.temperature)
    order = sorted((i for i in range(len(logits)) if logits[i] > -np.inf), key=lambda i: (-scaled[i], i))
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    weights /= weights.sum()
    if params.top_p < 1.0:
        num_short = int((np.cumsum(weights) < params.top_p).sum())  # runs that do not reach the mass yet
        order, weights = order[: num_short + 1], weights[: num_short + 1]
    keep = weights >= params.min_p * weights[0]
    ids, weights = np.array(order, dtype=np.int64)[keep], weights[keep]
    return ids, weights / weights.sum()


def choose(logits: NDArray[np.float32], params: SampleParams, position: int) -> int:
    """The token at a position (see the contract)."""
    if params.temperature == 0.0:
        return int(logits.argmax())
    ids = np.sort(kept_probabilities(logits, params)[0])
    scores = logits[ids] / np.float64(params.temperature) + gumbel_noise(params.seed, position, ids)
    return int(ids[scores.argmax()])
