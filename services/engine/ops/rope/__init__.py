"""Rotary position embedding of half-split pairs, on all or the leading dimensions of a head.

Formula: with R rotary dims, i < R / 2, angle a = position * theta^(-2 i / R):
           y[i]         = x[i] cos a - x[i + R / 2] sin a
           y[i + R / 2] = x[i + R / 2] cos a + x[i] sin a
         dims R .. D - 1 pass.
Shapes:  positions [T] int64; tables cos, sin [T, 1, R] fp32; heads [T, H, D] fp32, last axis contiguous.
Domain:  R even, 2 <= R <= D; positions below 2^24, where fp32 counts exactly.
Numeric: angles, cosines and sines in fp32, like the libraries the models were trained with.
Effects: apply_rope rotates heads in place.
"""

from engine.ops.rope.reference import RotaryTables, apply_rope, make_tables

__all__ = ["RotaryTables", "apply_rope", "make_tables"]
