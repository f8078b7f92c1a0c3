"""The gated delta contract in torch fp32, column by column. Owns the sequential form, its replay record and the fold.

Every column runs the same operations on the same shapes, whatever the call brings, so a row's bits cannot depend on its
neighbours. Does NOT hold the 64-token form (`chunked.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CONV_WIDTH = 4
CONV_STATE_ROWS = CONV_WIDTH - 1
_L2_EPS = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class DeltaWeights:
    """Shapes: conv [4, C] fp32 (taps first); decay_rate [Hv] fp32, -exp(A_log); dt_bias [Hv] fp32."""

    conv: Tensor
    decay_rate: Tensor
    dt_bias: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeltaInputs:
    """Projected rows of T tokens.

    Shapes: qkv [T, C] before the convolution, in the type of the state's conv; a [T, Hv] (decay), b [T, Hv] (beta).
    """

    qkv: Tensor
    a: Tensor
    b: Tensor

    def rows(self, first: int, last: int) -> "DeltaInputs":
        """Views of rows first .. last - 1."""
        return DeltaInputs(self.qkv[first:last], self.a[first:last], self.b[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class DeltaState:
    """One layer's state, written in place: all zeros at the start of a sequence.

    Shapes: recurrent [Hv, K, V] fp32; conv [3, C] in the activation type, the last raw columns, oldest first.
            Both contiguous.
    """

    recurrent: Tensor
    conv: Tensor

    def clone(self) -> "DeltaState":
        """A copy that shares no memory."""
        return DeltaState(self.recurrent.clone(), self.conv.clone())


@dataclass(frozen=True, slots=True, eq=False)
class ReplayRecord:
    """What commit needs of each proposed column.

    Shapes: k [M, Hk, K] normalised, u [M, Hv, V], g [M, Hv], beta [M, Hv] fp32; columns [M, C] raw, in the type of
            the state's conv. All contiguous.
    """

    k: Tensor
    u: Tensor
    g: Tensor
    beta: Tensor
    columns: Tensor

    @property
    def capacity(self) -> int:
        """Columns that fit."""
        return self.k.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(x.nbytes for x in (self.k, self.u, self.g, self.beta, self.columns))


@dataclass(frozen=True, slots=True)
class _Column:
    """One token after convolution, norms and gates: q, k [Hk, K], v [Hv, V], g and beta [Hv]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def num_key_heads(state: DeltaState) -> int:
    """Hk, from the channels that the values leave."""
    num_value_heads, key_dim, value_dim = state.recurrent.shape
    return (state.conv.shape[1] - num_value_heads * value_dim) // (2 * key_dim)


def make_record(state: DeltaState, num_columns: int) -> ReplayRecord:
    """An empty record for up to num_columns columns of a layer with this state."""
    num_value_heads, key_dim, value_dim = state.recurrent.shape
    make = state.recurrent.new_zeros
    return ReplayRecord(
        k=make(num_columns, num_key_heads(state), key_dim),
        u=make(num_columns, num_value_heads, value_dim),
        g=make(num_columns, num_value_heads),
        beta=make(num_columns, num_value_heads),
        columns=state.conv.new_zeros(num_columns, state.conv.shape[1]),
    )


def advance(inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor) -> None:
    """Run T columns through the state.

    Shapes:  out [T, Hv, V] fp32.
    Effects: writes state and out.
    """
    padded = torch.cat((state.conv, inputs.qkv))  # [3 + T, C]
    for t in range(inputs.qkv.shape[0]):
        column = _prepare(padded[t : t + CONV_WIDTH], inputs, t, weights, state)
        _step(column, state.recurrent, out[t])
    state.conv.copy_(padded[-CONV_STATE_ROWS:])


def propose(inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, record: ReplayRecord, out: Tensor) -> None:
    """Run M columns from the state without changing it, recording what commit needs.

    Shapes:  inputs of M rows, M <= record.capacity; out [M, Hv, V] fp32.
    Effects: writes record columns 0 .. M - 1 and out.
    """
    num_columns = inputs.qkv.shape[0]
    assert num_columns <= record.capacity, f"{num_columns} columns, the record holds {record.capacity}"
    padded = torch.cat((state.conv, inputs.qkv))  # [3 + M, C]
    recurrent = state.recurrent.clone()
    for m in range(num_columns):
        column = _prepare(padded[m : m + CONV_WIDTH], inputs, m, weights, state)
        record.u[m] = _step(column, recurrent, out[m])
        record.k[m], record.g[m], record.beta[m] = column.k, column.g, column.beta
    record.columns[:num_columns] = inputs.qkv


def commit(record: ReplayRecord, num_accepted: int, state: DeltaState) -> None:
    """Fold the first num_accepted proposed columns into the state they were proposed from; 0 changes nothing.

    Effects: writes state.
    """
    assert 0 <= num_accepted <= record.capacity, f"{num_accepted} columns, the record holds {record.capacity}"
    for m in range(num_accepted):
        _decay(state.recurrent, record.g[m])
        _write(state.recurrent, record.k[m], record.u[m])
    state.conv.copy_(torch.cat((state.conv, record.columns[:num_accepted]))[-CONV_STATE_ROWS:])


def _prepare(window: Tensor, inputs: DeltaInputs, t: int, weights: DeltaWeights, state: DeltaState) -> _Column:
    """Row t from its four raw columns [4, C]."""
    num_value_heads, key_dim, value_dim = state.recurrent.shape
    mixed = torch.nn.functional.silu((window * weights.conv).sum(dim=0))  # [C]
    num_value_channels = num_value_heads * value_dim
    keys_and_queries = mixed[:-num_value_channels].view(2, -1, key_dim)
    q, k = l2_normalize(keys_and_queries).unbind(0)
    g, beta = gates(inputs.a[t], inputs.b[t], weights)
    return _Column(q * key_dim**-0.5, k, mixed[-num_value_channels:].view(num_value_heads, value_dim), g, beta)


def l2_normalize(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + _L2_EPS)


def gates(a: Tensor, b: Tensor, weights: DeltaWeights) -> tuple[Tensor, Tensor]:
    """Log decay g <= 0 and write strength beta, fp32, of the shape of a and b."""
    softplus = torch.nn.functional.softplus(a.to(torch.float32) + weights.dt_bias)
    return weights.decay_rate * softplus, torch.sigmoid(b.to(torch.float32))


def _step(column: _Column, recurrent: Tensor, out: Tensor) -> Tensor:
    """One delta step on the state in place; writes the head outputs [Hv, V], returns u [Hv, V]."""
    _decay(recurrent, column.g)
    u = column.beta.unsqueeze(1) * (column.v - _read(recurrent, column.k))
    _write(recurrent, column.k, u)
    out.copy_(_read(recurrent, column.q))
    return u


def _decay(recurrent: Tensor, g: Tensor) -> None:
    recurrent.mul_(g.exp()[:, None, None])


def _read(recurrent: Tensor, k: Tensor) -> Tensor:
    """S^T k of every value head: [Hv, V] from key heads [Hk, K]."""
    num_value_heads, key_dim, value_dim = recurrent.shape
    shared = recurrent.view(k.shape[0], -1, key_dim, value_dim)  # [Hk, Hv / Hk, K, V]
    return (shared * k[:, None, :, None]).sum(dim=2).view(num_value_heads, value_dim)


def _write(recurrent: Tensor, k: Tensor, u: Tensor) -> None:
    """S += k u^T."""
    num_key_heads, key_dim = k.shape
    shared = recurrent.view(num_key_heads, -1, key_dim, recurrent.shape[2])
    shared.addcmul_(k[:, None, :, None], u.view(num_key_heads, -1, 1, recurrent.shape[2]))
