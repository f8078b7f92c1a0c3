"""Causal grouped-query attention of new rows over a flat key/value timeline.

Formula: for row t at position start + t and query head h, with key/value head g = h // (Hq / Hkv):
           out[t, h] = sum_j softmax_j(scale * q[t, h] . keys[g, j]) values[g, j],   j = 0 .. start + t
Shapes:  q [T, Hq, D] fp32; keys, values [Hkv, N, D] fp32, N = start + T, last axis contiguous, head stride free;
         scores: scratch of at least Hq * min(T, block_rows) * N fp32 elements; out [T, Hq, D] fp32, contiguous.
Domain:  T >= 1, start >= 0, Hq a multiple of Hkv.
Numeric: scores, softmax and sums in fp32. Rows are computed in blocks that end on multiples of block_rows of the
         absolute position, so a row meets the same sums wherever a chunk began.
Effects: writes out and scores; out must not alias q.
"""

from engine.ops.attention.reference import attention

__all__ = ["attention"]
