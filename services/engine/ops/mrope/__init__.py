"""Rotary tables for three-axis positions (time, height, width), interleaved over the frequencies.

Owns which axis turns which frequency. Hands on tables for `ops/rope`, which rotates the heads; the positions of images
are the caller's. Text has equal positions on all axes, and the tables are then those of plain RoPE.

Formula: with R rotary dims and sections (t, h, w), frequency i < R / 2 is theta^(-2 i / R) and turns with the height
         position if i % 3 == 1 and i < 3 h, with the width position if i % 3 == 2 and i < 3 w, else with time.
Shapes:  positions [3, T] int64; tables cos, sin [T, 1, R] fp32, sin with its first half negated.
Domain:  t + h + w = R / 2; R even; positions below 2^24, where fp32 counts exactly.
Numeric: angle = fp32(position) * fp32(1 / theta^(2 i / R)), the order of the reference library: near 262,144 another
         order differs by up to 0.016 rad.
"""

from engine.ops.mrope.reference import make_mrope_tables

__all__ = ["make_mrope_tables"]
