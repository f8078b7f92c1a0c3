"""The delta core and the gated attention pieces against transformers' own modules of this family, in fp32."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as family

from engine.ops.attention_gate import apply_gate, split_query_gate
from engine.ops.gated_delta import DeltaInputs, DeltaState, DeltaWeights, advance, advance_chunked, gated_rmsnorm
from engine.ops.mrope import make_mrope_tables
from engine.ops.rmsnorm import rmsnorm
from engine.ops.rope import apply_rope

# Both sides round to fp32; outputs are of order 1.
TOLERANCE = 5e-6
EPS = 1e-6
KEY_DIM, VALUE_DIM, HEAD_DIM = 32, 32, 64


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def config(num_key_heads: int = 2, num_heads: int = 6) -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=HEAD_DIM, linear_num_key_heads=num_key_heads,
        linear_num_value_heads=num_heads, linear_key_head_dim=KEY_DIM, linear_value_head_dim=VALUE_DIM,
        linear_conv_kernel_dim=4, rms_norm_eps=EPS, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                         "mrope_section": [3, 3, 2], "mrope_interleaved": True},
    )  # fmt: skip


def randomize(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("A_log"):
            parameter.copy_(torch.rand(parameter.shape, generator=generator) * 2 - 2)
        elif name.endswith("norm.weight"):
            parameter.copy_((1.0 if name == "norm.weight" else 0.0) + 0.1 * noise)
        elif "conv1d" in name or name.endswith("dt_bias"):
            parameter.copy_(0.5 * noise)
        else:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)


class DeltaBlock:
    """The library's GatedDeltaNet weights run through our operators."""

    def __init__(self, module: family.Qwen3_5GatedDeltaNet) -> None:
        self.module = module
        taps = module.conv1d.weight.squeeze(1).T.contiguous()
        self.weights = DeltaWeights(taps, -module.A_log.exp(), module.dt_bias)
        self.state = DeltaState(torch.zeros(module.num_v_heads, KEY_DIM, VALUE_DIM), torch.zeros(3, taps.shape[1]))

    def __call__(self, hidden: Tensor, *, chunked: bool) -> Tensor:
        m = self.module
        inputs = DeltaInputs(m.in_proj_qkv(hidden), m.in_proj_a(hidden), m.in_proj_b(hidden))
        heads = torch.empty(len(hidden), m.num_v_heads, VALUE_DIM)
        (advance_chunked if chunked else advance)(inputs, self.weights, self.state, heads)
        z = m.in_proj_z(hidden).view(heads.shape)
        normed = gated_rmsnorm(heads, z, m.norm.weight, EPS)
        out: Tensor = m.out_proj(normed.flatten(1))
        return out


@pytest.mark.parametrize("heads", [(2, 2), (2, 4), (2, 6)])
@pytest.mark.parametrize("num_tokens", [1, 63, 64, 65, 200, 1000])
def test_delta_block_matches_the_library_in_both_forms(num_tokens: int, heads: tuple[int, int]) -> None:
    module = family.Qwen3_5GatedDeltaNet(config(*heads), 0)
    randomize(module, 1)
    hidden = torch.randn(num_tokens, 48, generator=torch.Generator().manual_seed(2))
    want = module(hidden.unsqueeze(0))[0]
    for chunked in (True, False):
        torch.testing.assert_close(DeltaBlock(module)(hidden, chunked=chunked), want, atol=TOLERANCE, rtol=0)


def test_delta_block_continues_from_prefill_as_the_library_does() -> None:
    module = family.Qwen3_5GatedDeltaNet(config(), 0)
    randomize(module, 3)
    hidden = torch.randn(100, 48, generator=torch.Generator().manual_seed(4))
    cache, block = DynamicCache(config=config()), DeltaBlock(module)
    torch.testing.assert_close(
        block(hidden[:70], chunked=True), module(hidden[None, :70], cache=cache)[0], atol=TOLERANCE, rtol=0
    )
    for t in range(70, 100):
        want = module(hidden[None, t : t + 1], cache=cache)[0]
        torch.testing.assert_close(block(hidden[t : t + 1], chunked=False), want, atol=TOLERANCE, rtol=0)
    recurrent = cache.get_recurrent_state(0, state_idx=0)[0]
    torch.testing.assert_close(block.state.recurrent, recurrent, atol=TOLERANCE, rtol=0)
    assert torch.equal(block.state.conv, cache.get_conv_state(0, state_idx=0)[0].T[-3:])


@pytest.mark.parametrize("rule", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
@pytest.mark.parametrize("num_tokens", [1, 65, 200])
def test_rule_matches_the_librarys_functions_from_a_given_state(num_tokens: int, rule: str) -> None:
    """With an identity convolution, whose SiLU the library's inputs get by hand."""
    generator = torch.Generator().manual_seed(5)
    num_channels = 2 * 2 * KEY_DIM + 6 * VALUE_DIM
    taps = torch.zeros(4, num_channels)
    taps[3] = 1
    weights = DeltaWeights(taps, -torch.rand(6, generator=generator), torch.randn(6, generator=generator))
    inputs = DeltaInputs(*(torch.randn(num_tokens, n, generator=generator) for n in (num_channels, 6, 6)))
    state = DeltaState(torch.randn(6, KEY_DIM, VALUE_DIM, generator=generator), torch.zeros(3, num_channels))
    mixed = torch.nn.functional.silu(inputs.qkv)
    q, k, v = torch.split(mixed, [2 * KEY_DIM, 2 * KEY_DIM, 6 * VALUE_DIM], dim=1)
    want, want_state = getattr(family, rule)(
        q.view(1, num_tokens, 2, KEY_DIM), k.view(1, num_tokens, 2, KEY_DIM), v.view(1, num_tokens, 6, VALUE_DIM),
        g=(weights.decay_rate * torch.nn.functional.softplus(inputs.a + weights.dt_bias)).unsqueeze(0),
        beta=inputs.b.sigmoid().unsqueeze(0), initial_state=state.recurrent.clone().unsqueeze(0),
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    for form in (advance, advance_chunked):
        ours, out = state.clone(), torch.empty(num_tokens, 6, VALUE_DIM)
        form(inputs, weights, ours, out)
        torch.testing.assert_close(out, want[0], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(ours.recurrent, want_state[0], atol=TOLERANCE, rtol=0)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[T, H, D] in and out, scale D^-1/2."""
    share = q.shape[1] // k.shape[1]
    heads = [x.transpose(0, 1) for x in (q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1))]
    return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1)


@pytest.mark.parametrize("num_tokens", [1, 65, 200])
def test_gated_attention_pieces_match_the_librarys_block(num_tokens: int) -> None:
    """Query/gate split, offset-one head norms before partial interleaved RoPE, grouped heads, sigmoid gate."""
    module = family.Qwen3_5Attention(config(), 3)
    randomize(module, 6)
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(num_tokens, 48, generator=generator)
    positions = torch.randint(0, 3000, (3, num_tokens), generator=generator)
    embeddings = family.Qwen3_5TextRotaryEmbedding(config())(hidden, positions.unsqueeze(1))
    mask = torch.full((num_tokens, num_tokens), -torch.inf).triu(1)[None, None]
    want = module(hidden.unsqueeze(0), embeddings, mask)[0][0]

    q, gate = split_query_gate(module.q_proj(hidden), HEAD_DIM)
    q = rmsnorm(q, module.q_norm.weight, eps=EPS, offset=1.0)
    k = rmsnorm(module.k_proj(hidden).view(-1, 2, HEAD_DIM), module.k_norm.weight, eps=EPS, offset=1.0)
    tables = make_mrope_tables(positions, rotary_dims=16, theta=1e7, sections=(3, 3, 2))
    apply_rope(q, tables)
    apply_rope(k, tables)
    out = causal_attention(q, k, module.v_proj(hidden).view(-1, 2, HEAD_DIM)).contiguous()
    apply_gate(out, gate)
    torch.testing.assert_close(module.o_proj(out.flatten(1)), want, atol=TOLERANCE, rtol=0)
