"""Causal grouped-query attention of new rows over a flat key/value timeline.

Formula: for row t at position p = start + t and query head h, with key/value head g = h // (Hq / Hkv):
           out[t, h] = sum_j softmax_j(q[t, h] . keys[g, j] / sqrt(D)) values[g, j],   j = 0 .. p
Shapes:  q [T, Hq, D] fp32; keys, values [Hkv, N, D] fp32, last axis contiguous, other strides free;
         scores: scratch of at least Hq * block_rows * N fp32 elements; out [T, Hq, D] fp32, contiguous.
Domain:  T >= 1, start >= 0, Hq a multiple of Hkv, block_rows a power of two up to 64. N >=
         num_columns(start, T): start + 1 for one row, else start + T rounded up to 64; rows of keys and values from
         start + T on may hold anything finite.
Numeric: scores, softmax and sums in fp32. With T > 1 a row's sums run over its whole 64-block and never in a product of
         few rows, so it meets the same ones wherever a chunk began or ended.
Effects: writes out and scores; out must not alias q.
"""

from engine.ops.attention.reference import attention
from engine.ops.attention_layout import num_columns

__all__ = ["attention", "num_columns"]
