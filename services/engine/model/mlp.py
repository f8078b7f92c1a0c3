"""The gated feed-forward of a layer: down(silu(gate x) * up x), added to the residual stream. Owns this formula."""

import torch
from torch.nn import functional

from engine.model.expanded import LayerMatrices
from engine.model.workspace import Rows


def run_mlp(normed: torch.Tensor, rows: Rows, matrices: LayerMatrices) -> None:
    """Add the feed-forward of normalised rows to the residual stream.

    Shapes:  normed [T, C] fp32. Effects: adds to rows.residual; overwrites rows.gate_up.
    """
    matrices.gate_up.multiply(normed, rows.gate_up)
    gate, up = rows.gate_up.chunk(2, dim=1)  # [T, F] each
    functional.silu(gate, inplace=True).mul_(up)
    matrices.down.add_product(gate, rows.residual)
