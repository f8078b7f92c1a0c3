"""Small random models of the hybrid family as public checkpoints: config, tensors, tokenizer.

Independent of the engine's own names: every tensor is listed here as the published checkpoints have it.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support import safetensors_writer as writer
from support.safetensors_writer import Stored

TINY_HYBRID = Path(__file__).resolve().parents[2] / "models" / "tiny-hybrid"
Values = dict[str, NDArray[np.float32]]
NESTED, FLAT = "model.language_model.", "model."


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a random model; the tokenizer is tiny-hybrid's, so the vocabulary has its size."""

    hidden: int = 64
    inner: int = 192
    layers: int = 4
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 16
    value_dim: int = 16
    vocab: int = 2048
    tied: bool = True
    mtp: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the text configuration

    def text_config(self) -> dict[str, Any]:
        sections = {64: [3, 3, 2], 256: [11, 11, 10]}[self.head_dim]
        config: dict[str, Any] = {
            "model_type": "qwen3_5_text", "vocab_size": self.vocab, "hidden_size": self.hidden,
            "intermediate_size": self.inner, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": self.key_heads, "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.key_dim, "linear_value_head_dim": self.value_dim, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096, "hidden_act": "silu", "attn_output_gate": True, "attention_bias": False,
            "full_attention_interval": 4, "mtp_num_hidden_layers": int(self.mtp), "tie_word_embeddings": self.tied,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                "mrope_section": sections, "mrope_interleaved": True,
            },
        }  # fmt: skip
        return config | dict(self.changes)

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k, v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every text tensor, by its name without the prefix, in the order they are written."""
    hidden, values = shape.hidden, shape.value_heads * shape.value_dim
    found: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (shape.vocab, hidden), "norm.weight": (hidden,)}
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocab, hidden)
    for layer in range(shape.layers):
        prefix = f"layers.{layer}"
        found |= _common(prefix, shape)
        if (layer + 1) % 4 == 0:
            found |= _attention(prefix, shape)
            continue
        found |= {
            f"{prefix}.linear_attn.in_proj_qkv.weight": (shape.channels, hidden),
            f"{prefix}.linear_attn.in_proj_z.weight": (values, hidden),
            f"{prefix}.linear_attn.in_proj_b.weight": (shape.value_heads, hidden),
            f"{prefix}.linear_attn.in_proj_a.weight": (shape.value_heads, hidden),
            f"{prefix}.linear_attn.conv1d.weight": (shape.channels, 1, 4),
            f"{prefix}.linear_attn.A_log": (shape.value_heads,),
            f"{prefix}.linear_attn.dt_bias": (shape.value_heads,),
            f"{prefix}.linear_attn.norm.weight": (shape.value_dim,),
            f"{prefix}.linear_attn.out_proj.weight": (hidden, values),
        }
    if shape.mtp:
        found |= {
            "mtp.fc.weight": (hidden, 2 * hidden),
            "mtp.pre_fc_norm_embedding.weight": (hidden,),
            "mtp.pre_fc_norm_hidden.weight": (hidden,),
            "mtp.norm.weight": (hidden,),
        }
        found |= _common("mtp.layers.0", shape) | _attention("mtp.layers.0", shape)
    return found


def random_values(shape: Shape, seed: int = 0) -> Values:
    """Numbers that bf16 holds exactly, except A_log and dt_bias, which checkpoints keep in fp32."""
    rng = np.random.default_rng(seed)
    values: Values = {}
    for name, axes in shapes(shape).items():
        numbers = rng.normal(0.0, axes[-1] ** -0.5 if len(axes) > 1 else 0.1, axes).astype(np.float32)
        keeps = name.endswith(("A_log", "dt_bias"))
        values[name] = numbers if keeps else writer.from_bf16(writer.to_bf16(numbers)).reshape(axes)
    return values


def spell(name: str, prefix: str = NESTED) -> str:
    """The published name of a tensor."""
    return name if name.startswith(("mtp.", "lm_head.")) else prefix + name


def stored_values(values: Values, prefix: str = NESTED, dtype: str = "BF16") -> dict[str, Stored]:
    """Tensors as they are written, A_log and dt_bias in fp32."""
    return {
        spell(name, prefix): writer.stored("F32" if name.endswith(("A_log", "dt_bias")) else dtype, numbers)
        for name, numbers in values.items()
    }


def write_checkpoint(
    folder: Path, shape: Shape, tensors: Mapping[str, Stored], *, nested: bool = True, num_shards: int = 1, **top: Any
) -> Path:
    """A whole checkpoint folder; `top` adds or replaces fields of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = shape.text_config()
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": shape.tied} if nested else text
    (folder / "config.json").write_text(json.dumps(config | top), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(TINY_HYBRID / name, folder / name)
    if num_shards == 1:
        writer.write_file(folder / "model.safetensors", tensors)
    else:
        writer.write_shards(folder, tensors, num_shards)
    return folder


def _common(prefix: str, shape: Shape) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.input_layernorm.weight": (shape.hidden,),
        f"{prefix}.post_attention_layernorm.weight": (shape.hidden,),
        f"{prefix}.mlp.gate_proj.weight": (shape.inner, shape.hidden),
        f"{prefix}.mlp.up_proj.weight": (shape.inner, shape.hidden),
        f"{prefix}.mlp.down_proj.weight": (shape.hidden, shape.inner),
    }


def _attention(prefix: str, shape: Shape) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.self_attn.q_proj.weight": (2 * shape.heads * shape.head_dim, shape.hidden),
        f"{prefix}.self_attn.k_proj.weight": (shape.kv_heads * shape.head_dim, shape.hidden),
        f"{prefix}.self_attn.v_proj.weight": (shape.kv_heads * shape.head_dim, shape.hidden),
        f"{prefix}.self_attn.o_proj.weight": (shape.hidden, shape.heads * shape.head_dim),
        f"{prefix}.self_attn.q_norm.weight": (shape.head_dim,),
        f"{prefix}.self_attn.k_norm.weight": (shape.head_dim,),
    }
