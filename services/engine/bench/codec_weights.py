"""Lattice weights S^2, S or 1 on real keys: what decides kv_codec's WEIGHT_EXPONENT. Owns the comparison only.

Weights matter only where a head has several scale groups. A model with wide heads is measured as it is; heads of 64
dims are joined four at a time over two consecutive layers, which gives groups as unequal as two layers' keys are.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.ops.kv_codec import rotate
from engine.ops.kv_codec.variants import round_plane_e8
from engine.ops.kv_layout import GROUP_DIMS

EXPONENTS = (2, 1, 0)
_JOINED_HEADS = 4


@dataclass(slots=True)
class ExponentTally:
    """One exponent's figures, a list entry per head and window."""

    nmse: list[float] = field(default_factory=list)
    nmse_by_group: list[list[float]] = field(default_factory=list)
    score_error: list[float] = field(default_factory=list)
    attention_kl: list[float] = field(default_factory=list)


class WeightStudy:
    """Collects keys with their queries, layer by layer, and compares the exponents on them."""

    def __init__(self) -> None:
        self._tallies = {exponent: ExponentTally() for exponent in EXPONENTS}
        self._waiting: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, layer: int, q: Tensor, k: Tensor, centre: Tensor) -> None:
        """One layer's q [T, Hq, D], k [T, Hkv, D] and centre [Hkv, D], in layer order."""
        share = q.shape[1] // k.shape[1]
        own_q = q[:, ::share]  # one query head for every KV head
        if k.shape[2] > GROUP_DIMS:
            for head in range(k.shape[1]):
                self._measure(own_q[:, head], k[:, head], centre[head])
            return
        if layer % 2 == 0:
            self._waiting = (own_q, k, centre)
        elif self._waiting is not None:
            joined = [torch.cat(pair, dim=-2) for pair in zip(self._waiting, (own_q, k, centre), strict=True)]
            heads = joined[0].shape[1] // _JOINED_HEADS * _JOINED_HEADS
            for first in range(0, heads, _JOINED_HEADS):
                wide_q, wide_k, wide_centre = (x[..., first : first + _JOINED_HEADS, :].flatten(-2) for x in joined)
                self._measure(wide_q, wide_k, wide_centre)
            self._waiting = None

    def report(self) -> dict[str, object]:
        """By exponent, means over heads; score_error_relative is sum |q_g|^2 err_g against the first exponent's."""
        base = sum(self._tallies[EXPONENTS[0]].score_error)
        return {
            f"S^{exponent}": {
                "nmse": _mean(tally.nmse),
                "nmse_by_group": [_mean(list(group)) for group in zip(*tally.nmse_by_group, strict=True)],
                "nmse_worst_group": _mean([max(groups) for groups in tally.nmse_by_group]),
                "score_error_relative": sum(tally.score_error) / base,
                "attention_kl": _mean(tally.attention_kl),
                "num_heads": len(tally.nmse),
            }
            for exponent, tally in self._tallies.items()
        }

    def _measure(self, q: Tensor, k: Tensor, centre: Tensor) -> None:
        """One head: q, k [T, D], centre [D]."""
        rotated_q, y = rotate(q), rotate(k - centre)
        scale = k.shape[1] ** -0.5
        want = _causal_log_weights(rotated_q, y, scale)
        for exponent, tally in self._tallies.items():
            got = round_plane_e8(y, exponent)
            squares = torch.unflatten((got - y).square(), -1, (-1, GROUP_DIMS)).sum(dim=(0, 2))  # [G]
            norms = torch.unflatten(y.square(), -1, (-1, GROUP_DIMS)).sum(dim=(0, 2))
            energy = torch.unflatten(q.square(), -1, (-1, GROUP_DIMS)).mean(dim=(0, 2))
            tally.nmse.append(float(squares.sum() / norms.sum()))
            tally.nmse_by_group.append([float(ratio) for ratio in squares / norms])
            tally.score_error.append(float((energy * squares).sum() / (energy * norms).sum()))
            other = _causal_log_weights(rotated_q, got, scale)
            divergence = (want.exp() * (want - other)).nan_to_num(0.0).sum(-1)  # masked entries are -inf minus -inf
            tally.attention_kl.append(float(divergence.mean()))


def _causal_log_weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    scores = (q @ k.T) * scale
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).log_softmax(-1)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)
