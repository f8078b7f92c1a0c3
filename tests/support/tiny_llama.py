"""A tiny llama-family model as a GGUF file, made with the `gguf` package: random weights, byte-level vocabulary."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from contracts.generate import Sampling
from engine.registry import PackageSource, RegisteredModel
from engine.spec import AttentionDims, ModelSpec

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

TINY_LLAMA = ModelSpec(
    name="tiny-llama",
    family="llama",
    vocab_size=len(SPECIALS) + 256 + 1,
    hidden_size=96,
    intermediate_size=160,
    schedule=("attention",) * 2,
    attention=AttentionDims(num_heads=6, num_kv_heads=2, head_dim=16, rotary_dims=16, rope_theta=10_000.0),
    delta=None,
    norm_eps=1e-5,
    norm_offset=0.0,
    tied_embedding=True,
    context_limit=256,
    mtp_layers=0,
    default_kv_format="bf16",
)

Tensors = dict[str, tuple[NDArray[np.float32], GGMLQuantizationType]]


def random_tensors(spec: ModelSpec, *, linear: str = "Q4_1", embedding: str = "Q8_0", seed: int = 0) -> Tensors:
    """Name -> (values, storage kind) of every tensor the spec needs."""
    rng = np.random.default_rng(seed)
    dims, hidden, inner = spec.attention, spec.hidden_size, spec.intermediate_size
    kinds = GGMLQuantizationType

    def matrix(num_rows: int, num_cols: int, kind: str) -> tuple[NDArray[np.float32], GGMLQuantizationType]:
        values = rng.normal(0.0, num_cols**-0.5, (num_rows, num_cols)).astype(np.float32)
        return values, kinds[kind]

    def norm() -> tuple[NDArray[np.float32], GGMLQuantizationType]:
        return (1.0 + 0.1 * rng.normal(size=hidden)).astype(np.float32), kinds.F32

    tensors: Tensors = {"token_embd.weight": matrix(spec.vocab_size, hidden, embedding), "output_norm.weight": norm()}
    if not spec.tied_embedding:
        tensors["output.weight"] = matrix(spec.vocab_size, hidden, embedding)
    for index in range(spec.num_layers):
        layer = {
            "attn_norm": norm(),
            "ffn_norm": norm(),
            "attn_q": matrix(dims.num_q_rows, hidden, linear),
            "attn_k": matrix(dims.num_kv_rows, hidden, linear),
            "attn_v": matrix(dims.num_kv_rows, hidden, linear),
            "attn_output": matrix(hidden, dims.num_output_cols, linear),
            "ffn_gate": matrix(inner, hidden, linear),
            "ffn_up": matrix(inner, hidden, linear),
            "ffn_down": matrix(hidden, inner, linear),
        }
        tensors |= {f"blk.{index}.{name}.weight": value for name, value in layer.items()}
    return tensors


def write_gguf(
    path: Path, spec: ModelSpec, tensors: Tensors, spoil: Callable[[str, NDArray[np.uint8]], None] | None = None
) -> None:
    """Write the file; spoil(name, bytes) may damage a tensor's stored bytes in place."""
    writer = GGUFWriter(path, "llama")
    dims = spec.attention
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.context_limit)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(dims.num_heads)
    writer.add_head_count_kv(dims.num_kv_heads)
    writer.add_rope_freq_base(dims.rope_theta)
    writer.add_rope_dimension_count(dims.rotary_dims)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab_size)
    _add_vocabulary(writer)
    for name, (values, kind) in tensors.items():
        stored = (
            quantize(values, kind) if kind.name not in ("F32", "F16") else values.astype(f"<f{2 if kind == 1 else 4}")
        )
        if spoil is not None:
            spoil(name, stored.view(np.uint8))
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def registered(spec: ModelSpec, source: PackageSource) -> RegisteredModel:
    """A registry entry of the tiny model."""
    return RegisteredModel(
        spec=spec, source=source, stop_token_ids=(2, 0), bos_token_id=1, eos_token_id=2, default_sampling=Sampling()
    )


def untied(spec: ModelSpec) -> ModelSpec:
    """The same model with a head of its own."""
    return dataclasses.replace(spec, tied_embedding=False)


def _add_vocabulary(writer: GGUFWriter) -> None:
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*SPECIALS, *alphabet, "th"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(alphabet) + 1))
    writer.add_token_merges(["t h"])
    writer.add_chat_template(TEMPLATE)
