"""One layer of each kind as wide as the largest model's, random weights, against transformers: sizes, not depth."""

import time

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as family

from engine.calibrate.streamed import OneLayer
from engine.ops.linear import DenseMatrix
from engine.registry import lookup
from engine.spec import ModelSpec
from engine.weights.tensors import AttentionWeights, DeltaWeights, LayerWeights, MlpWeights
from support.tiny_hybrid import random_tensor

SPEC = lookup("qwen3.8-27b").spec
TOKENS = 192
# Sums over up to 17,408 products in fp32, of outputs of order 1.
TOLERANCE = 2e-4


def library_config(spec: ModelSpec) -> Qwen3_5TextConfig:
    attention, delta = spec.attention, spec.delta
    assert delta is not None
    rope = {
        "rope_type": "default", "rope_theta": attention.rope_theta, "partial_rotary_factor": 0.25,
        "mrope_section": list(attention.mrope_sections or ()), "mrope_interleaved": True,
    }  # fmt: skip
    return Qwen3_5TextConfig(
        vocab_size=64, hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size, num_hidden_layers=4,
        num_attention_heads=attention.num_heads, num_key_value_heads=attention.num_kv_heads,
        head_dim=attention.head_dim, linear_num_key_heads=delta.num_key_heads,
        linear_num_value_heads=delta.num_value_heads, linear_key_head_dim=delta.key_dim,
        linear_value_head_dim=delta.value_dim, linear_conv_kernel_dim=delta.conv_width, rms_norm_eps=spec.norm_eps,
        rope_parameters=rope, attn_implementation="eager",
    )  # fmt: skip


def our_weights(tensors: dict[str, Tensor]) -> LayerWeights:
    """The library's tensors stacked as `weights/tensors` says."""

    def matrix(*names: str) -> DenseMatrix:
        return DenseMatrix(torch.cat([tensors[f"{name}.weight"] for name in names]))

    if "self_attn.q_proj.weight" in tensors:
        mixer: AttentionWeights | DeltaWeights = AttentionWeights(
            qkv=matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output=matrix("self_attn.o_proj"),
            q_norm=tensors["self_attn.q_norm.weight"],
            k_norm=tensors["self_attn.k_norm.weight"],
        )
    else:
        mixer = DeltaWeights(
            inputs=matrix("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
            gates=matrix("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
            conv=tensors["linear_attn.conv1d.weight"].squeeze(1),
            decay_log=tensors["linear_attn.A_log"],
            dt_bias=tensors["linear_attn.dt_bias"],
            norm=tensors["linear_attn.norm.weight"],
            output=matrix("linear_attn.out_proj"),
        )
    return LayerWeights(
        mixer_norm=tensors["input_layernorm.weight"],
        mixer=mixer,
        mlp_norm=tensors["post_attention_layernorm.weight"],
        mlp=MlpWeights(matrix("mlp.gate_proj", "mlp.up_proj"), matrix("mlp.down_proj")),
    )


@pytest.mark.release  # seven gigabytes for half a minute
@pytest.mark.parametrize("index", [0, 3], ids=["delta", "attention"])
@torch.no_grad()
def test_a_layer_of_the_largest_model_matches_transformers(index: int) -> None:
    config = library_config(SPEC)
    with torch.device("meta"):
        library = family.Qwen3_5DecoderLayer(config, index)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: random_tensor(name, tuple(parameter.shape), generator) for name, parameter in library.named_parameters()
    }
    library.load_state_dict(tensors, assign=True)
    x = torch.randn(TOKENS, SPEC.hidden_size, generator=generator)
    positions = torch.arange(TOKENS)[None, None].expand(3, 1, -1)
    tables = family.Qwen3_5TextRotaryEmbedding(config)(x, positions)
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None] if index == 3 else None
    expected = library.eval()(x[None], position_embeddings=tables, attention_mask=mask, position_ids=positions[0])[0]
    layer = OneLayer(SPEC, our_weights(tensors), TOKENS)
    started_s = time.monotonic()
    layer.run(x)
    print(f"{TOKENS / (time.monotonic() - started_s):.0f} tokens/s through one layer")
    assert (x - expected).abs().max() <= TOLERANCE * expected.std()
