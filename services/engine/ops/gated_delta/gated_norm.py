"""Gated RMSNorm of delta heads. Owns the one norm of the family whose weight is plain, not offset by one."""

import torch
from torch import Tensor


def gated_rmsnorm(heads: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise every head, scale it, and gate it with silu(z).

    Formula: weight * (x / sqrt(mean(x^2) + eps)) * silu(z)
    Shapes:  heads [T, Hv, V] fp32; z [T, Hv, V]; weight [V] fp32; out [T, Hv, V] fp32.
    Numeric: fp32 throughout, z widened before silu.
    """
    scale = torch.rsqrt(heads.square().mean(dim=-1, keepdim=True) + eps)
    return weight * (heads * scale) * torch.nn.functional.silu(z.to(torch.float32))
