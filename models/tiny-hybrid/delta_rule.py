"""The gated delta rule over whole sequences, in a form that is quicker to differentiate on a CPU than the library's.

Puts itself in the library's place for training, after comparing itself with it. Does NOT carry a state in or out and is
not used for the figures.
"""

from typing import Any

import torch
import torch.nn.functional as F
import transformers.models.qwen3_5.modeling_qwen3_5 as reference
from torch import Tensor

TRAINING_CHUNK = 16


def use_training_delta_rule() -> float:
    """Put the training form in the library's place; returns its largest difference from the library's own."""
    torch.manual_seed(7)
    shapes = ((2, 128, 2, 32), (2, 128, 2, 32), (2, 128, 6, 32), (2, 128, 6), (2, 128, 6))
    query, key, value, decay, beta = (torch.randn(shape) for shape in shapes)
    arguments = (query, key, value, -F.softplus(decay - 2), torch.sigmoid(beta))
    want, _ = reference.torch_chunk_gated_delta_rule(*arguments, use_qk_l2norm_in_kernel=True)
    got, _ = training_delta_rule(*arguments, use_qk_l2norm_in_kernel=True)
    difference = float((got - want).abs().max())
    if not difference <= 1e-5:
        raise ArithmeticError(f"the training delta rule differs from the library's by {difference}, limit 1e-5")
    reference.torch_chunk_gated_delta_rule = training_delta_rule
    return difference


def training_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **unused: Any
) -> tuple[Tensor, None]:
    """Gated delta rule over whole sequences from a zero state, without a final state.

    Shapes:  query, key [B, T, Hk, K]; value [B, T, Hv, V]; g, beta [B, T, Hv]; out [B, T, Hv, V].
    Domain:  T is a multiple of TRAINING_CHUNK; keys and queries are normalised here; no state goes in or comes out.
    Numeric: fp32 throughout; products of keys are formed once per key head and shared by its value heads.
    """
    if unused.get("initial_state") is not None or unused.get("output_final_state"):
        raise ValueError("the training delta rule carries no state")
    B, T, _, K = key.shape
    Hv, V = value.shape[-2:]
    if T % TRAINING_CHUNK:
        raise ValueError(f"{T} tokens are no multiple of {TRAINING_CHUNK}")
    with torch.autocast("cpu", enabled=False):
        out = _chunked(_unit(query.float()) * K**-0.5, _unit(key.float()), value.float(), g.float(), beta.float())
    return out.reshape(B, T, Hv, V).to(query.dtype), None


def _chunked(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    B, T, Hk, K = key.shape
    Hv, V = value.shape[-2:]
    R, C = Hv // Hk, TRAINING_CHUNK
    N = T // C
    q, k = (x.view(B, N, C, Hk, K).permute(0, 3, 1, 2, 4)[:, :, None] for x in (query, key))
    v = value.view(B, N, C, Hk, R, V).permute(0, 3, 4, 1, 2, 5)  # [B, Hk, R, N, C, V]
    beta = beta.view(B, N, C, Hk, R).permute(0, 3, 4, 1, 2)[..., None]
    total = g.view(B, N, C, Hk, R).permute(0, 3, 4, 1, 2).cumsum(-1)  # [B, Hk, R, N, C]
    future = torch.ones(C, C, dtype=torch.bool).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(future, float("-inf")).exp()
    system = (k @ k.transpose(-1, -2)) * decay * beta
    within = (q @ k.transpose(-1, -2)) * decay
    since_start = total.exp()[..., None]
    right = torch.cat([v * beta, k * (beta * since_start)], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    to_end = (total[..., -1:] - total).exp()[..., None]
    parts = (*solved.split([V, K], -1), q * since_start, k * to_end, within, total[..., -1].exp()[..., None, None])
    return _scan_chunks([part.unbind(3) for part in parts]).permute(0, 1, 4, 2, 3, 5)  # [B, N, C, Hk, R, V]


def _scan_chunks(parts: list[tuple[Tensor, ...]]) -> Tensor:
    """Carry the state over the chunks. Shapes: each part has N tensors [B, Hk, R, C, .]; out [B, N, Hk, R, C, V]."""
    outputs = []
    state: Tensor | None = None  # [B, Hk, R, K, V]
    for new, seen, query, key, within, decay in zip(*parts, strict=True):
        if state is None:
            outputs.append(within @ new)
            state = key.transpose(-1, -2) @ new
            continue
        written = new - seen @ state
        outputs.append(query @ state + within @ written)
        state = state * decay + key.transpose(-1, -2) @ written
    return torch.stack(outputs, 1)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
