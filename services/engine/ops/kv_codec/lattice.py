"""E8 lattice search of rk4v4-e8: scale candidates, the descent over them, nearest points. Owns the encoder's sums.

Receives rotated values of head-tokens, hands on fp16 scales and lattice points. Does NOT pack words (`reference.py`).
The order of products and sums and the tie rules are part of the format: equal input gives equal bytes everywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.kv_layout import (
    BLOCK_DIMS,
    GROUP_DIMS,
    SCALE_DIVISORS,
    START_CANDIDATE,
    SWEEP_CANDIDATES,
    WEIGHT_EXPONENT,
)

MAX_SCALE = 65504.0  # the largest finite fp16


def candidate_scales(y: Tensor) -> Tensor:
    """The scales the e8 encoder chooses from.

    Shapes:  y [N, D] fp32; out [N, G, 4] fp16.
    Formula: fp16(min(absmax / d, 65504)); a candidate that rounds to 0 becomes the first one.
    """
    absmax = torch.unflatten(y, -1, (-1, GROUP_DIMS)).abs().amax(dim=-1)  # [N, G]
    divisors = torch.tensor(SCALE_DIVISORS, dtype=torch.float32, device=y.device)
    scales = (absmax.unsqueeze(-1) / divisors).clamp(max=MAX_SCALE).to(torch.float16)
    return torch.where(scales == 0, scales[..., :1], scales)


def nearest_points(y: Tensor, scales: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The E8 points nearest to y / scales, blocks being the words' eight strided dims.

    Shapes:  y [N, D] fp32; scales [N, G] fp16; weights [N, G] fp32 >= 0, of squared error in units of the scale;
             out points [N, 8, W] int32 and cosets [N, W] int32.
    Numeric: exact minimum; of equal cosets the integer one; of equal parity steps the lowest nibble, up before down.
    """
    blocks = torch.unflatten(y, -1, (BLOCK_DIMS, -1)).unsqueeze(2)  # [N, 8, 1, W]
    fits = [_fit_coset(blocks, scales.unsqueeze(-1), weights.unsqueeze(-1), coset) for coset in (0, 1)]
    errors = []
    points = []
    for fit in fits:
        stepped, error = _apply_parity_step(fit)
        points.append(stepped)
        errors.append(error)
    half = errors[1] < errors[0]  # [N, W]
    return torch.where(half.unsqueeze(1), points[1], points[0]), half.to(torch.int32)


def lattice_weights(scales: Tensor) -> Tensor:
    """Weights S^WEIGHT_EXPONENT in fp32, exact: an fp16 scale squared has 22 significant bits."""
    assert WEIGHT_EXPONENT == 2, "the sums choose_scales compares are squared errors in these weights only"
    wide = scales.to(torch.float32)
    return wide * wide


def choose_scales(y: Tensor) -> Tensor:
    """One sweep of coordinate descent over the scale candidates, from all groups at SCALE_DIVISORS[START_CANDIDATE].

    Shapes:  y [N, D] fp32; out [N, G] fp16.
    Numeric: a candidate replaces the best only if its total squared error is strictly smaller.
    """
    candidates = candidate_scales(y)  # [N, G, 4]
    options = _group_partials(y, candidates)
    selection = torch.full(candidates.shape[:2], START_CANDIDATE, dtype=torch.int64, device=y.device)
    current = [by_candidate[START_CANDIDATE] for by_candidate in options]
    best = _total_error(current)  # [N]
    for group, by_candidate in enumerate(options):
        for k in SWEEP_CANDIDATES:
            tried = by_candidate[k]
            total = _total_error([*current[:group], tried, *current[group + 1 :]])
            better = total < best
            best = torch.where(better, total, best)
            selection[:, group] = torch.where(better, k, selection[:, group])
            current[group] = _choose(better, tried, current[group])
    return candidates.gather(2, selection.unsqueeze(-1)).squeeze(-1)


def squared_error(y: Tensor, scales: Tensor) -> Tensor:
    """What choose_scales compares: squared error [N] of y [N, D] under scales [N, G], in the format's order of sums."""
    return _total_error([by_candidate[0] for by_candidate in _group_partials(y, scales.unsqueeze(-1))])


def inverse_scales(scales: Tensor) -> Tensor:
    """1 / float(S) correctly rounded, 0 where S is 0; fp32."""
    wide = scales.to(torch.float32)
    return torch.where(wide == 0, 0.0, torch.ones_like(wide) / wide)


def per_nibble(by_group: Tensor, dim: int) -> Tensor:
    """Repeat a group axis so that it runs over the 8 nibbles of a word: nibble i belongs to group floor(i G / 8)."""
    return by_group.repeat_interleave(BLOCK_DIMS // by_group.shape[dim], dim=dim)


@dataclass(frozen=True, slots=True)
class _CosetFit:
    """One coset's rounding of every nibble under K candidates: before the parity step, by nibble.

    rounded, squares, up, down are [N, 8, K, W]: the rounded v, its weighted squared error, and what a step of +1 or -1
    would add to it (inf where the step leaves the range).
    """

    rounded: Tensor
    squares: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Partial:
    """What one group under one candidate adds to every block's error, for both cosets: [2, N, W] each.

    error before the parity step, odd the parity of the group's coordinates, step the group's cheapest parity step.
    """

    error: Tensor
    odd: Tensor
    step: Tensor


def _choose(better: Tensor, tried: _Partial, kept: _Partial) -> _Partial:
    mask = better[None, :, None]
    return _Partial(
        torch.where(mask, tried.error, kept.error),
        torch.where(mask, tried.odd, kept.odd),
        torch.where(mask, tried.step, kept.step),
    )


def _group_partials(y: Tensor, candidates: Tensor) -> list[list[_Partial]]:
    """Partials by group and candidate."""
    blocks = torch.unflatten(y, -1, (BLOCK_DIMS, -1)).unsqueeze(2)  # [N, 8, 1, W]
    weights = lattice_weights(candidates)
    num_groups, num_candidates = candidates.shape[1:]
    fits = [_fit_coset(blocks, candidates, weights, coset) for coset in (0, 1)]
    parities = [torch.unflatten(fit.rounded, 1, (num_groups, -1)).sum(dim=2) for fit in fits]
    steps = [torch.unflatten(torch.minimum(fit.up, fit.down), 1, (num_groups, -1)).amin(dim=2) for fit in fits]
    error = torch.stack([_fold_nibbles(fit.squares, num_groups) for fit in fits])  # [2, N, G, K, W]
    odd = torch.stack([parity.to(torch.int8) & 1 for parity in parities])
    step = torch.stack(steps)
    return [
        [_Partial(error[:, :, g, k], odd[:, :, g, k], step[:, :, g, k]) for k in range(num_candidates)]
        for g in range(num_groups)
    ]


def _fit_coset(blocks: Tensor, scales: Tensor, weights: Tensor, coset: int) -> _CosetFit:
    """blocks [N, 8, 1, W], scales and weights [N, G, K]; the order of products is part of the format."""
    inverse = per_nibble(inverse_scales(scales), 1).unsqueeze(-1)  # [N, 8, K, 1]
    weight = per_nibble(weights, 1).unsqueeze(-1)
    v = blocks * inverse - 0.5 * coset
    rounded = v.round().clamp(-8, 7)
    e = v - rounded
    up = torch.where(rounded < 7, (1 - 2 * e) * weight, torch.inf)
    down = torch.where(rounded > -8, (1 + 2 * e) * weight, torch.inf)
    return _CosetFit(rounded, (e * e) * weight, up, down)


def _apply_parity_step(fit: _CosetFit) -> tuple[Tensor, Tensor]:
    """Integer points of even sum [N, 8, W] int32 and their error [N, W], for a fit of one candidate."""
    points = fit.rounded.squeeze(2).to(torch.int32)
    odd = (points.sum(dim=1, dtype=torch.int32) & 1) == 1  # [N, W]
    costs = torch.stack((fit.up, fit.down), dim=2).squeeze(3).flatten(1, 2)  # [N, 16, W], up before down
    index = costs.argmin(dim=1, keepdim=True)  # the first of equals
    step = torch.where(odd.unsqueeze(1), 1 - 2 * (index & 1), 0).to(torch.int32)
    error = _fold_nibbles(fit.squares, 1).squeeze((1, 2))
    cost = costs.gather(1, index).squeeze(1)
    return points.scatter_add(1, index >> 1, step), torch.where(odd, error + cost, error)


def _total_error(partials: list[_Partial]) -> Tensor:
    """Squared error [N] of a head-token, from one partial of each group."""
    errors = [partial.error for partial in partials]
    while len(errors) > 1:
        errors = [low + high for low, high in zip(errors[0::2], errors[1::2], strict=True)]
    odd, step = partials[0].odd, partials[0].step
    for partial in partials[1:]:
        odd = odd ^ partial.odd
        step = torch.minimum(step, partial.step)
    by_coset = torch.where(odd == 1, errors[0] + step, errors[0])  # [2, N, W]
    blocks = torch.minimum(by_coset[0], by_coset[1])
    while blocks.shape[1] > 1:
        half = blocks.shape[1] // 2
        blocks = blocks[:, :half] + blocks[:, half:]
    return blocks.squeeze(1)


def _fold_nibbles(x: Tensor, num_left: int) -> Tensor:
    """Sum neighbours pairwise along axis 1 until num_left are left: subtrees of ((0+1)+(2+3))+((4+5)+(6+7))."""
    while x.shape[1] > num_left:
        x = x[:, 0::2] + x[:, 1::2]
    return x
