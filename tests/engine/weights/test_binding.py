"""Weights: lossless repacking against the `gguf` package, plan equals bound, every defect refused by name."""

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as gguf_dequantize
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.ops.linear import DenseMatrix, QuantizedMatrix, dequantize
from engine.spec import ModelSpec
from engine.weights.binding import load_weights
from engine.weights.gguf import read_header
from engine.weights.gguf_file import GgufFile
from engine.weights.reserve import reserve_weights
from engine.weights.stored import stored_gguf
from engine.weights.tensors import DecoderWeights
from support.tiny_llama import TINY_LLAMA, Tensors, random_tensors, untied, write_gguf

CPU = torch.device("cpu")


def open_checkpoint(path: Path) -> GgufFile:
    return GgufFile(path, read_header(path).to_directory(path.stat().st_size, "0" * 64))


def bind(spec: ModelSpec, file: GgufFile) -> tuple[DecoderWeights, Arena, list[tuple[int, int]]]:
    builder = LayoutBuilder()
    source = stored_gguf(file)
    reserve_weights(spec, source, builder)
    arena = Arena(builder.plan(), CPU)
    calls: list[tuple[int, int]] = []
    weights = load_weights(spec, source, arena, lambda done, total: calls.append((done, total)))
    return weights, arena, calls


def tiny(tmp_path: Path, tensors: Tensors | None = None, spec: ModelSpec = TINY_LLAMA) -> GgufFile:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, spec, random_tensors(spec) if tensors is None else tensors)
    return open_checkpoint(path)


def stored_floats(path: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor as the `gguf` package reads it."""
    return {t.name: gguf_dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def half_split(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of every head from pairs (2i, 2i + 1) to (i, i + half), one at a time."""
    head_dim = rows.shape[0] // num_heads
    out = np.empty_like(rows)
    for head in range(num_heads):
        for i in range(head_dim // 2):
            out[head * head_dim + i] = rows[head * head_dim + 2 * i]
            out[head * head_dim + i + head_dim // 2] = rows[head * head_dim + 2 * i + 1]
    return out


def assert_equals_file(weights: DecoderWeights, path: Path, spec: ModelSpec) -> None:
    stored = stored_floats(path)
    dims = spec.attention
    assert np.array_equal(dequantize(weights.embedding).numpy(), stored["token_embd.weight"])
    head = "token_embd.weight" if spec.tied_embedding else "output.weight"
    assert np.array_equal(dequantize(weights.head).numpy(), stored[head])
    assert np.array_equal(weights.final_norm.numpy(), stored["output_norm.weight"])
    for index, layer in enumerate(weights.layers):
        tensor = {name.split(".")[2]: values for name, values in stored.items() if name.startswith(f"blk.{index}.")}
        q, k = half_split(tensor["attn_q"], dims.num_heads), half_split(tensor["attn_k"], dims.num_kv_heads)
        expected = {
            "qkv": (layer.mixer.qkv, np.concatenate([q, k, tensor["attn_v"]])),
            "output": (layer.mixer.output, tensor["attn_output"]),
            "gate_up": (layer.mlp.gate_up, np.concatenate([tensor["ffn_gate"], tensor["ffn_up"]])),
            "down": (layer.mlp.down, tensor["ffn_down"]),
        }
        for name, (matrix, values) in expected.items():
            assert np.array_equal(dequantize(matrix).numpy(), values), f"layer {index} {name}"
        assert np.array_equal(layer.mixer_norm.numpy(), tensor["attn_norm"])
        assert np.array_equal(layer.mlp_norm.numpy(), tensor["ffn_norm"])


@pytest.mark.parametrize(("linear", "embedding"), [("Q4_1", "Q8_0"), ("Q4_0", "Q4_0"), ("Q8_0", "F16"), ("F16", "F32")])
def test_repacking_loses_nothing(tmp_path: Path, linear: str, embedding: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TINY_LLAMA, random_tensors(TINY_LLAMA, linear=linear, embedding=embedding))
    weights, _, _ = bind(TINY_LLAMA, open_checkpoint(path))
    assert_equals_file(weights, path, TINY_LLAMA)
    assert weights.tied
    assert isinstance(weights.layers[0].mixer.qkv, QuantizedMatrix if linear.startswith("Q") else DenseMatrix)


def test_head_of_its_own(tmp_path: Path) -> None:
    spec = untied(TINY_LLAMA)
    file = tiny(tmp_path, spec=spec)
    weights, _, _ = bind(spec, file)
    assert not weights.tied
    assert_equals_file(weights, file.path, spec)


def test_weights_bind_every_planned_region_and_no_byte_elsewhere(tmp_path: Path) -> None:
    weights, arena, _ = bind(TINY_LLAMA, tiny(tmp_path))
    bound = [weights.final_norm, *matrix_tensors(weights.embedding)]
    for layer in weights.layers:
        bound += [layer.mixer_norm, layer.mlp_norm]
        for matrix in (layer.mixer.qkv, layer.mixer.output, layer.mlp.gate_up, layer.mlp.down):
            bound += matrix_tensors(matrix)
    planned = {(arena.tensor(r.name).data_ptr(), r.tensor_bytes) for r in arena.plan.regions}
    assert {(t.data_ptr(), t.nbytes) for t in bound} == planned
    assert len(bound) == len(arena.plan.regions)


def matrix_tensors(matrix: QuantizedMatrix | DenseMatrix) -> list[torch.Tensor]:
    if isinstance(matrix, DenseMatrix):
        return [matrix.weight]
    return [matrix.codes, matrix.scales] + ([] if matrix.minima is None else [matrix.minima])


def test_progress_ends_at_the_checkpoint_s_bytes(tmp_path: Path) -> None:
    file = tiny(tmp_path)
    _, _, calls = bind(TINY_LLAMA, file)
    done = [d for d, _ in calls]
    assert done == sorted(set(done)) and len(calls) == 1 + 2 * 6 + 1, "one call a matrix and a vector"
    assert calls[-1] == (sum(e.bytes for e in file.directory.tensors),) * 2


def refusal(tmp_path: Path, tensors: Tensors, spec: ModelSpec = TINY_LLAMA) -> str:
    with pytest.raises(SetupError) as caught:
        reserve_weights(spec, stored_gguf(tiny(tmp_path, tensors)), LayoutBuilder())
    return caught.value.message


def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA)
    kept = {name: value for name, value in tensors.items() if name != "blk.1.ffn_up.weight"}
    assert "tensors missing: blk.1.ffn_up.weight" in refusal(tmp_path, kept)

    extra = {**tensors, "rope_freqs.weight": tensors["output_norm.weight"]}
    assert "tensors not part of this model: rope_freqs.weight" in refusal(tmp_path, extra)

    values, kind = tensors["blk.0.attn_k.weight"]
    narrow = {**tensors, "blk.0.attn_k.weight": (values[:16], kind)}
    assert "misshapen: blk.0.attn_k.weight is [16, 96], expected [32, 96]" in refusal(tmp_path, narrow)


def test_long_lists_are_cut(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"output_norm.weight": random_tensors(TINY_LLAMA)["output_norm.weight"]})
    assert message.endswith(" and 14 more") and message.count(";") == 4


def test_unsupported_kind_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA, linear="Q5_1")
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TINY_LLAMA, tensors)
    with pytest.raises(
        SetupError, match=r"blk\.0\.attn_q\.weight is stored as Q5_1; supported: F32, F16, BF16, Q4_0, Q4_1, Q8_0"
    ):
        open_checkpoint(path)


def test_quantised_norm_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA)
    values, _ = tensors["blk.0.ffn_norm.weight"]
    tensors["blk.0.ffn_norm.weight"] = (values, gguf.GGMLQuantizationType.Q8_0)
    assert "blk.0.ffn_norm.weight is stored as Q8_0" in refusal(tmp_path, tensors)


def test_stacked_parts_stored_differently_are_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA)
    values, _ = tensors["blk.0.attn_v.weight"]
    tensors["blk.0.attn_v.weight"] = (values, gguf.GGMLQuantizationType.Q8_0)
    message = refusal(tmp_path, tensors)
    assert "weights.layers.0.qkv stacks parts" in message and "blk.0.attn_v.weight as Q8_0" in message


@pytest.mark.parametrize(
    ("tensor", "first_byte", "what"),
    [
        ("token_embd.weight", 0, "scales"),
        ("blk.1.ffn_down.weight", 0, "scales"),
        ("blk.0.attn_q.weight", 2, "minima"),
        ("output_norm.weight", 0, "weights"),
    ],
)
def test_values_that_are_not_finite_are_named(tmp_path: Path, tensor: str, first_byte: int, what: str) -> None:
    def spoil(name: str, stored: NDArray[np.uint8]) -> None:
        if name == tensor:
            nan = np.array([np.nan], dtype=np.float32 if stored.ndim == 1 else np.float16).view(np.uint8)
            stored.reshape(-1)[first_byte : first_byte + len(nan)] = nan

    path = tmp_path / "tiny.gguf"
    write_gguf(path, TINY_LLAMA, random_tensors(TINY_LLAMA), spoil)
    with pytest.raises(SetupError, match=f"{tensor} has {what} that are not finite"):
        bind(TINY_LLAMA, open_checkpoint(path))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"norm_eps": 1e-6}, "attention.layer_norm_rms_epsilon is 9.99"),
        ({"context_limit": 512}, "context_length is 256, tiny-llama has 512"),
        ({"attention": dataclasses.replace(TINY_LLAMA.attention, rope_theta=5e5)}, "rope.freq_base is 10000.0"),
        ({"schedule": ("attention",) * 3}, "block_count is 2"),
    ],
)
def test_metadata_that_differs_is_named(tmp_path: Path, change: dict[str, object], text: str) -> None:
    file = tiny(tmp_path)
    spec = dataclasses.replace(TINY_LLAMA, **change)  # type: ignore[arg-type]
    with pytest.raises(SetupError) as caught:
        reserve_weights(spec, stored_gguf(file), LayoutBuilder())
    assert text in caught.value.message


def test_other_architecture_and_family_are_named(tmp_path: Path) -> None:
    file = tiny(tmp_path)
    with pytest.raises(SetupError, match="holds architecture 'llama', tiny-llama is qwen3_5"):
        reserve_weights(dataclasses.replace(TINY_LLAMA, family="qwen3_5"), stored_gguf(file), LayoutBuilder())
    file.directory.metadata.clear()
    with pytest.raises(SetupError, match="metadata block_count is None"):
        reserve_weights(TINY_LLAMA, stored_gguf(file), LayoutBuilder())
