"""The gated delta contract in torch fp32, 64 columns at a time. Owns the parallel form that prefill uses.

Every block of 64 runs by itself, from the state the last one left, so its bits do not depend on how many blocks a call
brings. The last block may be shorter.
"""

import torch
from torch import Tensor

from engine.ops.gated_delta.reference import (
    CONV_STATE_ROWS,
    CONV_WIDTH,
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    gates,
    l2_normalize,
)

CHUNK_TOKENS = 64


def advance_chunked(inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor) -> None:
    """Run T columns through the state in blocks of 64, counted from the first row: start on the grid.

    Shapes:  out [T, Hv, V] fp32.
    Effects: writes state and out.
    """
    num_tokens = inputs.qkv.shape[0]
    for first in range(0, num_tokens, CHUNK_TOKENS):
        last = min(first + CHUNK_TOKENS, num_tokens)
        _advance_block(inputs.rows(first, last), weights, state, out[first:last])


def _advance_block(inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor) -> None:
    q, k, v = _mix(inputs.qkv, weights, state)
    g, beta = (x.T.contiguous() for x in gates(inputs.a, inputs.b, weights))  # [Hv, n]
    total = g.cumsum(dim=1)  # G: log decay from the block's start to each row
    lower = torch.ones(total.shape[1], total.shape[1], dtype=torch.bool, device=g.device).tril()
    # Above the diagonal the difference is positive and its exp may overflow, so it is masked first.
    decay = (total.unsqueeze(2) - total.unsqueeze(1)).masked_fill(~lower, -torch.inf).exp()  # [Hv, n, n]
    new_values, read_keys = _solve(k, v, beta, total, decay)
    new_values = new_values - read_keys @ state.recurrent  # v' [Hv, n, V]
    inside = (q @ k.mT) * decay
    grown = total.exp().unsqueeze(2)
    out.copy_(((q * grown) @ state.recurrent + inside @ new_values).transpose(0, 1))
    left = (total[:, -1:] - total).exp().unsqueeze(2)
    state.recurrent.mul_(total[:, -1].exp()[:, None, None]).add_((k * left).mT @ new_values)


def _mix(qkv: Tensor, weights: DeltaWeights, state: DeltaState) -> tuple[Tensor, Tensor, Tensor]:
    """Convolution, norms and key sharing: q, k [Hv, n, K] and v [Hv, n, V]; moves the convolution state on."""
    num_value_heads, key_dim, value_dim = state.recurrent.shape
    num_tokens = qkv.shape[0]
    padded = torch.cat((state.conv, qkv))  # [3 + n, C]
    taps = torch.stack([padded[i : i + num_tokens] for i in range(CONV_WIDTH)])  # [4, n, C]
    mixed = torch.nn.functional.silu((taps * weights.conv.unsqueeze(1)).sum(dim=0))
    state.conv.copy_(padded[-CONV_STATE_ROWS:])
    num_value_channels = num_value_heads * value_dim
    by_key_head = l2_normalize(mixed[:, :-num_value_channels].view(num_tokens, 2, -1, key_dim))
    share = num_value_heads // by_key_head.shape[2]
    q, k = by_key_head.permute(1, 2, 0, 3).repeat_interleave(share, dim=1).unbind(0)
    v = mixed[:, -num_value_channels:].view(num_tokens, num_value_heads, value_dim).transpose(0, 1).contiguous()
    return q * key_dim**-0.5, k, v


def _solve(k: Tensor, v: Tensor, beta: Tensor, total: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """(I + tril(beta k k^T exp(Gi - Gj), -1))^-1 of beta v and of beta k exp(G): [Hv, n, V] and [Hv, n, K]."""
    weighted_k = k * beta.unsqueeze(2)
    system = ((weighted_k @ k.mT) * decay).tril(-1)
    sides = torch.cat((v * beta.unsqueeze(2), weighted_k * total.exp().unsqueeze(2)), dim=2)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    return solved[..., : v.shape[2]], solved[..., v.shape[2] :]
