"""The attention gate contract in torch fp32."""

import torch
from torch import Tensor


def split_query_gate(rows: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Queries and gates [T, Hq, D] of projected rows [T, Hq * 2 * D], as views."""
    q, gate = rows.view(rows.shape[0], -1, 2, head_dim).unbind(2)
    return q, gate


def apply_gate(out: Tensor, gate: Tensor) -> None:
    """Multiply the attended heads [T, Hq, D] by sigmoid(gate), in place."""
    out.mul_(torch.sigmoid(gate))
