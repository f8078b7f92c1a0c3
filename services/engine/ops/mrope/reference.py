"""The mrope contract in torch fp32: tables once per forward pass."""

import torch
from torch import Tensor

from engine.ops.rope import RotaryTables


def make_mrope_tables(
    positions: Tensor, *, rotary_dims: int, theta: float, sections: tuple[int, int, int]
) -> RotaryTables:
    """Tables for positions [3, T] int64, on their device (see the contract)."""
    assert sum(sections) == rotary_dims // 2, f"sections {sections} do not add up to {rotary_dims // 2} frequencies"
    exponents = torch.arange(0, rotary_dims, 2, dtype=torch.float32, device=positions.device) / rotary_dims
    inverse = 1.0 / theta**exponents  # [R / 2]
    axes = torch.tensor(_axes(sections), device=positions.device)
    angles = positions.to(torch.float32)[axes].T * inverse  # [T, R / 2]
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return RotaryTables(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def _axes(sections: tuple[int, int, int]) -> list[int]:
    """The position axis of every frequency: 0 time, 1 height, 2 width."""
    return [axis if (axis := i % 3) and i < 3 * sections[axis] else 0 for i in range(sum(sections))]
