"""Weights bound into an arena, and all of them as one table of numbers by public name: what tests compare."""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.ops.linear import dequantize
from engine.spec import ModelSpec
from engine.weights.binding import load_weights
from engine.weights.checkpoint import Checkpoint
from engine.weights.reserve import reserve_weights
from engine.weights.tensors import AttentionWeights, DecoderWeights, LayerWeights

Values = dict[str, NDArray[np.float32]]


def bind(spec: ModelSpec, checkpoint: Checkpoint) -> tuple[DecoderWeights, Arena]:
    builder = LayoutBuilder()
    reserve_weights(spec, checkpoint, builder)
    arena = Arena(builder.plan(), torch.device("cpu"))
    return load_weights(spec, checkpoint, arena, lambda *_: None), arena


def public_values(weights: DecoderWeights, spec: ModelSpec) -> Values:
    """Every bound number under the published name of its tensor, matrices taken apart by their documented rows."""
    values = {"embed_tokens.weight": numbers(weights.embedding), "norm.weight": weights.final_norm.numpy()}
    if not weights.tied:
        values["lm_head.weight"] = numbers(weights.head)
    for index, layer in enumerate(weights.layers):
        values |= _layer(f"layers.{index}", layer, spec)
    if weights.mtp is not None:
        mtp = weights.mtp
        values |= {
            "mtp.fc.weight": numbers(mtp.projection),
            "mtp.pre_fc_norm_embedding.weight": mtp.embedding_norm.numpy(),
            "mtp.pre_fc_norm_hidden.weight": mtp.hidden_norm.numpy(),
            "mtp.norm.weight": mtp.final_norm.numpy(),
        } | _layer("mtp.layers.0", mtp.layer, spec)
    return values


def numbers(matrix: object) -> NDArray[np.float32]:
    return dequantize(matrix).numpy()  # type: ignore[arg-type]


def _layer(prefix: str, layer: LayerWeights, spec: ModelSpec) -> Values:
    gate, up = np.split(numbers(layer.mlp.gate_up), 2)
    values = {
        f"{prefix}.input_layernorm.weight": layer.mixer_norm.numpy(),
        f"{prefix}.post_attention_layernorm.weight": layer.mlp_norm.numpy(),
        f"{prefix}.mlp.gate_proj.weight": gate,
        f"{prefix}.mlp.up_proj.weight": up,
        f"{prefix}.mlp.down_proj.weight": numbers(layer.mlp.down),
    }
    mixer = layer.mixer
    if isinstance(mixer, AttentionWeights):
        dims = spec.attention
        q, k, v = np.split(numbers(mixer.qkv), [dims.num_q_rows, dims.num_q_rows + dims.num_kv_rows])
        assert mixer.q_norm is not None and mixer.k_norm is not None
        return values | {
            f"{prefix}.self_attn.q_proj.weight": q,
            f"{prefix}.self_attn.k_proj.weight": k,
            f"{prefix}.self_attn.v_proj.weight": v,
            f"{prefix}.self_attn.o_proj.weight": numbers(mixer.output),
            f"{prefix}.self_attn.q_norm.weight": mixer.q_norm.numpy(),
            f"{prefix}.self_attn.k_norm.weight": mixer.k_norm.numpy(),
        }
    assert spec.delta is not None
    qkv, z = np.split(numbers(mixer.inputs), [spec.delta.num_conv_channels])
    b, a = np.split(numbers(mixer.gates), 2)
    return values | {
        f"{prefix}.linear_attn.in_proj_qkv.weight": qkv,
        f"{prefix}.linear_attn.in_proj_z.weight": z,
        f"{prefix}.linear_attn.in_proj_b.weight": b,
        f"{prefix}.linear_attn.in_proj_a.weight": a,
        f"{prefix}.linear_attn.conv1d.weight": mixer.conv.numpy()[:, np.newaxis],
        f"{prefix}.linear_attn.A_log": mixer.decay_log.numpy(),
        f"{prefix}.linear_attn.dt_bias": mixer.dt_bias.numpy(),
        f"{prefix}.linear_attn.norm.weight": mixer.norm.numpy(),
        f"{prefix}.linear_attn.out_proj.weight": numbers(mixer.output),
    }
