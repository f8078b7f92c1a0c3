"""Steps 4 to 8 of the sample contract, for the host: filters on the few ids that can survive, then noise, then argmax.

Owns speed over reference.py: nothing here sorts the whole vocabulary. Both give the same token.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.ops.sample.philox import gumbel_noise

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleParams:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


def choose(logits: Logits, params: SampleParams, position: int) -> int:
    """The token at a position; logits are those after bias and dead rows (see the contract)."""
    if params.temperature == 0.0:
        return int(logits.argmax())
    ids = _keep(logits, params)
    scores = logits[ids] / np.float64(params.temperature) + gumbel_noise(params.seed, position, ids)
    return int(ids[scores.argmax()])


def _keep(logits: Logits, params: SampleParams) -> Ids:
    """Ids that survive the filters, ascending."""
    ids = _keep_largest(logits, params.top_k) if params.top_k else np.flatnonzero(logits > -np.inf)
    if params.top_p == 1.0 and params.min_p == 0.0:
        return ids
    scaled = logits[ids] / np.float64(params.temperature)
    weights = np.exp(scaled - scaled.max())  # the largest is exactly 1
    if params.top_p < 1.0:
        kept = _keep_mass(scaled, weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0.0:
        ids = ids[weights >= params.min_p]
    return ids


def _keep_largest(logits: Logits, top_k: int) -> Ids:
    """The ids of the top_k largest finite logits, ascending; the lowest ids where the last place is shared."""
    if top_k >= len(logits):
        return np.flatnonzero(logits > -np.inf)
    threshold = np.partition(logits, len(logits) - top_k)[len(logits) - top_k]
    if threshold == -np.inf:
        return np.flatnonzero(logits > -np.inf)
    above = np.flatnonzero(logits > threshold)
    level = np.flatnonzero(logits == threshold)[: top_k - len(above)]
    return np.sort(np.concatenate((above, level)))


def _keep_mass(scaled: NDArray[np.float64], weights: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Indices, ascending, of the shortest run of the largest whose probability reaches top_p."""
    total = weights.sum()
    # Entries lighter than (1 - top_p) / n hold less than 1 - top_p together: the run ends before them.
    candidates = np.flatnonzero(weights >= (1.0 - top_p) / len(weights) * total)
    order = candidates[np.argsort(-scaled[candidates], kind="stable")]
    mass = np.cumsum(weights[order])
    count = int(np.searchsorted(mass, top_p * total, side="left")) + 1
    return np.sort(order[: min(count, len(order))])
