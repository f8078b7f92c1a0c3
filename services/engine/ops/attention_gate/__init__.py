"""Output gate of gated attention: the query projection's layout and the sigmoid on the attended heads.

Owns how queries and gates share the projection's rows: for each head D query rows, then D gate rows. Does NOT normalise
(`ops/rmsnorm` with offset 1, before RoPE), rotate or attend.

Formula: out[t, h] *= sigmoid(gate[t, h])
Shapes:  rows [T, Hq * 2 * D]; q, gate [T, Hq, D]; out [T, Hq, D] fp32.
Numeric: fp32; the gate is not normalised and not rotated. Rotated KV formats return to plain space before the gate.
"""

from engine.ops.attention_gate.reference import apply_gate, split_query_gate

__all__ = ["apply_gate", "split_query_gate"]
