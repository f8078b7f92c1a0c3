"""Gated delta layer core in NumPy fp64, head by head, token by token: the oracle of ops/gated_delta, no code shared."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class DeltaCase:
    """Inputs, weights and initial state as arrays of any float type, in the checkpoint's conventions (A_log)."""

    qkv: Doubles
    a: Doubles
    b: Doubles
    taps: Doubles
    a_log: Doubles
    dt_bias: Doubles
    recurrent: Doubles
    conv: Doubles


def run(case: DeltaCase) -> tuple[Doubles, Doubles, Doubles]:
    """Head outputs [T, Hv, V], final recurrent state [Hv, K, V] and final raw columns [3, C]."""
    num_heads, key_dim, value_dim = case.recurrent.shape
    num_tokens, num_channels = case.qkv.shape
    num_key_heads = (num_channels - num_heads * value_dim) // (2 * key_dim)
    raw = np.concatenate([case.conv, case.qkv]).astype(np.float64)
    state = case.recurrent.astype(np.float64).copy()
    out = np.zeros((num_tokens, num_heads, value_dim))
    for t in range(num_tokens):
        mixed = np.zeros(num_channels)
        for tap in range(4):
            mixed += case.taps[tap] * raw[t + tap]
        mixed = mixed / (1 + np.exp(-mixed))
        queries, keys, values = np.split(mixed, [num_key_heads * key_dim, 2 * num_key_heads * key_dim])
        for head in range(num_heads):
            shared = head // (num_heads // num_key_heads)
            q = _unit(queries[shared * key_dim :][:key_dim]) / np.sqrt(key_dim)
            k = _unit(keys[shared * key_dim :][:key_dim])
            v = values[head * value_dim :][:value_dim]
            beta = 1 / (1 + np.exp(-float(case.b[t, head])))
            softplus = np.logaddexp(0, float(case.a[t, head]) + float(case.dt_bias[head]))
            state[head] *= np.exp(-np.exp(float(case.a_log[head])) * softplus)
            u = beta * (v - k @ state[head])
            state[head] += np.outer(k, u)
            out[t, head] = q @ state[head]
    return out, state, raw[-3:]


def _unit(x: Doubles) -> Doubles:
    return np.asarray(x / np.sqrt(np.sum(x * x) + 1e-6))
