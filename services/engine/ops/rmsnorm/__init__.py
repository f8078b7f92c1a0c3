"""Root-mean-square normalisation of rows.

Formula: y[t, c] = x[t, c] / sqrt(mean_c(x[t, c]^2) + eps) * (offset + weight[c])
Shapes:  x [..., C] fp32, last axis contiguous; weight [C] fp32; returns the shape of x, fp32.
Domain:  C >= 1, eps > 0. offset is 1 where checkpoints hold zero-centred weights, else 0.
Numeric: fp32 throughout; offset + weight is rounded to fp32 before the product.
"""

from engine.ops.rmsnorm.reference import rmsnorm

__all__ = ["rmsnorm"]
