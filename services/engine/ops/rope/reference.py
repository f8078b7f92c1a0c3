"""The rope contract in torch fp32: tables once per forward pass, three operations per layer."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class RotaryTables:
    """Cosines and signed sines of every position, laid out as the rotated dims of a head.

    Shapes:  cos [T, 1, R]; sin [T, 1, R], its first half negated: it multiplies the other half of the pair.
    """

    cos: torch.Tensor
    sin: torch.Tensor


def make_tables(positions: torch.Tensor, *, rotary_dims: int, theta: float) -> RotaryTables:
    """Tables for positions [T] int64, on their device."""
    exponents = torch.arange(0, rotary_dims, 2, dtype=torch.float32, device=positions.device) / rotary_dims
    angles = positions.to(torch.float32)[:, None, None] / (theta**exponents)  # [T, 1, R / 2]
    cos, sin = angles.cos(), angles.sin()
    return RotaryTables(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def apply_rope(heads: torch.Tensor, tables: RotaryTables) -> None:
    """Rotate heads [T, H, D] in place (see the contract)."""
    num_tokens, num_heads, _ = heads.shape
    rotary_dims = tables.cos.shape[-1]
    rotated = heads[..., :rotary_dims]
    swapped = rotated.view(num_tokens, num_heads, 2, rotary_dims // 2).flip(-2).view(num_tokens, num_heads, rotary_dims)
    rotated.mul_(tables.cos).addcmul_(swapped, tables.sin)
