"""The attention, rope and rmsnorm references against plain fp64 loops, with poisoned scratch and outputs."""

import math

import pytest
import torch

from engine.ops.attention import attention, num_columns
from engine.ops.rmsnorm import rmsnorm
from engine.ops.rope import apply_rope, make_tables

# One fp32 softmax over at most a thousand terms.
TOLERANCE = 2e-6


def naive_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, scale: float
) -> torch.Tensor:
    q, keys, values = q.double(), keys.double(), values.double()
    num_tokens, num_heads, _ = q.shape
    out = torch.empty_like(q)
    for t in range(num_tokens):
        for h in range(num_heads):
            g = h // (num_heads // keys.shape[0])
            seen = slice(0, start + t + 1)
            weights = torch.softmax(scale * (keys[g, seen] @ q[t, h]), dim=0)
            out[t, h] = weights @ values[g, seen]
    return out


@pytest.mark.parametrize("num_tokens", [1, 2, 63, 65])
@pytest.mark.parametrize("start", [0, 1, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (6, 2), (4, 4)])
@pytest.mark.parametrize("block_rows", [1, 16, 64])
def test_attention_matches_the_naive_loop(
    num_tokens: int, start: int, num_heads: int, num_kv_heads: int, block_rows: int
) -> None:
    generator = torch.Generator().manual_seed(num_tokens + start)
    num_positions, head_dim = num_columns(start, num_tokens), 16
    wide = torch.randn(num_tokens, num_heads + 3, head_dim, generator=generator)
    q = wide[:, :num_heads]  # the heads of a fused projection: rows are strided
    flat = torch.randn(2, num_positions, num_kv_heads, head_dim, generator=generator)
    keys, values = flat[0].transpose(0, 1), flat[1].transpose(0, 1)
    scores = torch.full((num_heads * block_rows * num_positions,), math.nan)
    out = torch.full((num_tokens, num_heads, head_dim), math.nan)
    attention(q, keys, values, out, start=start, scores=scores, block_rows=block_rows)
    assert (out - naive_attention(q, keys, values, start, q.shape[2] ** -0.5)).abs().max() < TOLERANCE


@pytest.mark.parametrize(("head_dim", "rotary_dims"), [(16, 16), (16, 4), (64, 64)])
def test_rope_rotates_half_split_pairs(head_dim: int, rotary_dims: int) -> None:
    heads = torch.randn(5, 3, head_dim, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 1, 63, 1000, 8191])
    expected = heads.double().clone()
    half = rotary_dims // 2
    for t, position in enumerate(positions.tolist()):
        for i in range(half):
            angle = position * 10_000.0 ** (-2 * i / rotary_dims)
            a, b = heads[t, :, i].double(), heads[t, :, i + half].double()
            expected[t, :, i] = a * math.cos(angle) - b * math.sin(angle)
            expected[t, :, i + half] = b * math.cos(angle) + a * math.sin(angle)
    apply_rope(heads, make_tables(positions, rotary_dims=rotary_dims, theta=10_000.0))
    # An angle near 8191 has an fp32 spacing of 2^-10.
    assert (heads - expected).abs().max() < 2e-3
    assert torch.equal(heads[0].double(), expected[0]), "position 0 does not rotate"


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rmsnorm_matches_its_formula(offset: float) -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(3, 96, generator=generator), torch.randn(96, generator=generator)
    wide = x.double()
    expected = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * (offset + weight.double())
    assert (rmsnorm(x, weight, eps=1e-5, offset=offset) - expected).abs().max() < 2e-6
