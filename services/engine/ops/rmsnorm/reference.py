"""The rmsnorm contract in torch fp32. Owns the mathematics, no speed beyond torch's own fused operator."""

import torch
from torch.nn import functional


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, offset: float) -> torch.Tensor:
    """Normalise the last axis of x (see the contract)."""
    scale = weight if offset == 0.0 else weight + offset
    return functional.rms_norm(x, weight.shape, scale, eps)
