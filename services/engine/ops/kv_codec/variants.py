"""4-bit KV codings that others ship or that were weighed against rk4v4-e8, as functions on values, for the bench only.

Owns comparison rows: none of them is a format of the engine and none has codes here. Input and output are values in
code space (already rotated where the coding rotates), [..., D] fp32 with groups of 64 consecutive dims.
"""

import itertools

import torch
from torch import Tensor

from engine.ops.kv_codec.lattice import candidate_scales, nearest_points
from engine.ops.kv_layout import BLOCK_DIMS, GROUP_DIMS, SCALE_DIVISORS, START_CANDIDATE, SWEEP_CANDIDATES


def round_int4(y: Tensor, divisor: float = 8.0) -> Tensor:
    """Plain rounding to 4 bits, scale fp16(absmax / divisor): 8 uses all of -8..7, 7 stays within +-7."""
    lowest = -8 if divisor == 8.0 else -7
    groups, scale = _scaled_groups(y, divisor)
    return ((groups / scale).round().clamp(lowest, 7) * scale).reshape(y.shape)


def round_midrise(y: Tensor) -> Tensor:
    """Sixteen odd multiples of half a step, h = fp16(absmax / 15): no level at zero."""
    groups, half = _scaled_groups(y, 15.0)
    codes = (groups / (2 * half)).floor().clamp(-8, 7)
    return ((2 * codes + 1) * half).reshape(y.shape)


def round_e8_without_coset(y: Tensor) -> Tensor:
    """E8 search over 8 consecutive dims, absmax / 7, whose coset is lost: the point is rounded again to be stored."""
    groups, scale = _scaled_groups(y, 7.0)
    blocks = torch.unflatten(groups / scale, -1, (-1, BLOCK_DIMS))  # [M, 8, 8]
    whole = _nearest_d8(blocks)
    half = _nearest_d8(blocks - 0.5) + 0.5
    nearer = (blocks - half).square().sum(-1, keepdim=True) < (blocks - whole).square().sum(-1, keepdim=True)
    codes = torch.where(nearer, half, whole).round().clamp(-8, 7)
    return (codes.flatten(-2) * scale).reshape(y.shape)


def round_plane_e8(y: Tensor, weight_exponent: int) -> Tensor:
    """rk4v4-e8 with lattice weights S^weight_exponent; scale candidates are always compared by true squared error.

    Exponent 2 is the format itself, computed the long way round.
    """
    rows = y.reshape(-1, y.shape[-1])
    candidates = candidate_scales(rows)  # [N, G, 4]
    scales = candidates[:, :, START_CANDIDATE].clone()
    values = _plane_values(rows, scales, weight_exponent)
    best = (values - rows).square().sum(-1)
    for group, k in itertools.product(range(candidates.shape[1]), SWEEP_CANDIDATES):
        tried = scales.clone()
        tried[:, group] = candidates[:, group, k]
        tried_values = _plane_values(rows, tried, weight_exponent)
        error = (tried_values - rows).square().sum(-1)
        better = (error < best).unsqueeze(-1)
        scales = torch.where(better, tried, scales)
        values = torch.where(better, tried_values, values)
        best = torch.minimum(error, best)
    return values.reshape(y.shape)


def round_consecutive_e8(y: Tensor) -> Tensor:
    """True E8 on 8 consecutive dims of one group, best of the four scales by squared error: the non-plane layout."""
    groups = y.reshape(-1, GROUP_DIMS)
    absmax = groups.abs().amax(dim=-1, keepdim=True)
    best_values = torch.zeros_like(groups)
    best = torch.full((groups.shape[0], 1), torch.inf)
    for divisor in SCALE_DIVISORS:
        scale = _safe_scale(absmax / divisor)
        # One group of 64 as one head of 64: transposing its blocks makes the words' strided dims consecutive ones.
        strided = torch.unflatten(groups, -1, (BLOCK_DIMS, BLOCK_DIMS)).transpose(1, 2).reshape(groups.shape)
        half_scale = scale.to(torch.float16)
        points, cosets = nearest_points(strided, half_scale, torch.ones_like(scale))
        values = (points.transpose(1, 2).flatten(1) + 0.5 * cosets.repeat_interleave(BLOCK_DIMS, dim=1)) * scale
        error = (values - groups).square().sum(-1, keepdim=True)
        better = error < best
        best_values = torch.where(better, values, best_values)
        best = torch.minimum(error, best)
    return best_values.reshape(y.shape)


def _plane_values(rows: Tensor, scales: Tensor, weight_exponent: int) -> Tensor:
    wide = scales.to(torch.float32)
    weights = torch.where(wide == 0, 0.0, wide**weight_exponent)
    points, cosets = nearest_points(rows, scales, weights)
    by_nibble = wide.repeat_interleave(BLOCK_DIMS // scales.shape[1], dim=1).unsqueeze(-1)
    return ((points + 0.5 * cosets.unsqueeze(1)) * by_nibble).flatten(1)


def _scaled_groups(y: Tensor, divisor: float) -> tuple[Tensor, Tensor]:
    groups = y.reshape(-1, GROUP_DIMS)
    return groups, _safe_scale(groups.abs().amax(dim=-1, keepdim=True) / divisor)


def _safe_scale(scale: Tensor) -> Tensor:
    rounded = scale.to(torch.float16).to(torch.float32)
    return torch.where(rounded == 0, 1.0, rounded)


def _nearest_d8(z: Tensor) -> Tensor:
    rounded = z.round()
    error = z - rounded
    worst = error.abs().argmax(dim=-1, keepdim=True)
    step = torch.where(error.gather(-1, worst) >= 0, 1.0, -1.0)
    odd = rounded.sum(dim=-1, keepdim=True) % 2 != 0
    return torch.where(odd, rounded.scatter_add(-1, worst, step), rounded)
