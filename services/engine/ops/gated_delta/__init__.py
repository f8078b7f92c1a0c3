"""Gated DeltaNet core: causal convolution, gated delta rule and gated norm of one layer, one sequence.

Owns the recurrent mathematics between the input projections and the output projection. Receives projected rows and the
layer's state, hands on head outputs and the next state. It does NOT project, schedule columns, or keep snapshots.

Formula: raw = qkv rows, C = 2 Hk K + Hv V channels: q heads, k heads, v heads side by side
           x_t = silu(sum_i conv[i] * raw_(t - 3 + i))             tap 3 is the current token, zeros before the start
           q, k = x / sqrt(sum(x^2) + 1e-6) per head, q *= K^-1/2  (epsilon on the sum, not on the mean)
           beta = sigmoid(b);  g = decay_rate * softplus(a + dt_bias)  (<= 0)
         value head j reads key head j // (Hv / Hk); its state S [K, V] goes through
           S *= exp(g);  u = beta * (v - S^T k);  S += k u^T;  o = S^T q
Shapes:  DeltaInputs, DeltaWeights, DeltaState and ReplayRecord say theirs; out [T, Hv, V] fp32.
Domain:  T >= 1; Hv a multiple of Hk; any K and V. No batch axis.
Forms:   advance: column by column, in place. Rows do not depend on how many columns a call brings: bitwise equal for
           every split of the same columns.
         propose + commit: propose computes M columns from a state it leaves untouched and records, per column, the
           normalised k, u, g, beta and the raw convolution column; commit folds the first 0..M of them into the state,
           bitwise equal to advance over just those columns. Committing none leaves the state as it was.
         advance_chunked: the parallel form, 64 columns at a time from the first row of the call, in place. Bitwise
           equal for every split on multiples of 64; equal to advance up to fp32 rounding.
Numeric: fp32 throughout, also where raw columns are stored in a narrower activation type: nothing is rounded between
         the convolution and out. The state is fp32 (a 16-bit live state is measurably wrong). The decay difference is
         masked before exp.
Source:  Yang, Kautz, Hatamizadeh, Gated Delta Networks (2024), sections 3.2 and 3.3; conventions of the Qwen3.5 family.
"""

from engine.ops.gated_delta.chunked import advance_chunked
from engine.ops.gated_delta.gated_norm import gated_rmsnorm
from engine.ops.gated_delta.reference import (
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    ReplayRecord,
    advance,
    commit,
    make_record,
    propose,
)

__all__ = [
    "DeltaInputs",
    "DeltaState",
    "DeltaWeights",
    "ReplayRecord",
    "advance",
    "advance_chunked",
    "commit",
    "gated_rmsnorm",
    "make_record",
    "propose",
]
