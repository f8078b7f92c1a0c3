"""Public checkpoints: every tensor lands where it belongs, in every stored kind, and every defect is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from contracts.errors import SetupError
from engine.hf_config import read_config
from engine.memory.layout import LayoutBuilder
from engine.registry import lookup
from engine.spec import ModelSpec, describe_differences
from engine.weights.hf_source import HfSource
from engine.weights.reserve import reserve_weights
from engine.weights.safetensors import SafetensorsFolder
from engine.weights.stored import StoredWeights
from support import safetensors_writer as writer
from support.bound_weights import Values, bind, public_values
from support.hybrid_checkpoint import (
    FLAT,
    NESTED,
    TINY_HYBRID,
    Shape,
    random_values,
    shapes,
    spell,
    stored_values,
    write_checkpoint,
)
from support.safetensors_writer import Stored

SHAPE = Shape()


def open_folder(folder: Path) -> tuple[ModelSpec, StoredWeights]:
    config = read_config(folder, "test")
    source = HfSource(config, SafetensorsFolder(folder))
    return config.spec, StoredWeights(lambda _: source)


def assert_bound(folder: Path, expected: Values) -> None:
    spec, checkpoint = open_folder(folder)
    weights, _ = bind(spec, checkpoint)
    found = public_values(weights, spec)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(found[name].reshape(values.shape), values), name


def test_tiny_hybrid_equals_the_format_s_own_reader() -> None:
    theirs = {
        name.removeprefix(NESTED): tensor.to(torch.float32).numpy()
        for name, tensor in load_file(TINY_HYBRID / "model.safetensors").items()
    }
    assert_bound(TINY_HYBRID, theirs)


def test_tiny_hybrid_is_what_the_registry_says() -> None:
    model = lookup("tiny-hybrid")
    found = read_config(TINY_HYBRID, "tiny-hybrid").spec
    assert describe_differences(model.spec, found, ignore=frozenset({"dead_token_rows"})) == ""
    generation = json.loads((TINY_HYBRID / "generation_config.json").read_text())
    assert list(model.stop_token_ids) == generation["eos_token_id"]
    sampling = model.default_sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == tuple(
        generation[key] for key in ("temperature", "top_p", "top_k")
    )


@pytest.mark.parametrize("shape", [SHAPE, Shape(tied=False, value_heads=4), Shape(value_heads=2, head_dim=256)])
def test_names_and_shapes_are_the_library_s(shape: Shape) -> None:
    config = Qwen3_5TextConfig(**{k: v for k, v in shape.text_config().items() if k != "model_type"})
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    theirs = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=True)}
    ours = {spell(name, FLAT): axes for name, axes in shapes(shape).items() if not name.startswith("mtp.")}
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(("nested", "prefix"), [(True, NESTED), (False, FLAT)])
def test_both_forms_in_every_float(tmp_path: Path, nested: bool, prefix: str, dtype: str) -> None:
    values = random_values(SHAPE)
    if dtype == "F16":
        values = {name: numbers.astype(np.float16).astype(np.float32) for name, numbers in values.items()}
    folder = write_checkpoint(tmp_path / "m", SHAPE, stored_values(values, prefix, dtype), nested=nested)
    assert_bound(folder, values)


@pytest.mark.parametrize(
    "shape", [Shape(tied=False), Shape(mtp=False), Shape(layers=8, head_dim=256, heads=4, kv_heads=2)]
)
def test_shards_heads_and_missing_mtp(tmp_path: Path, shape: Shape) -> None:
    values = random_values(shape, seed=3)
    assert_bound(write_checkpoint(tmp_path / "m", shape, stored_values(values), num_shards=3), values)


def test_vision_is_known_and_set_aside(tmp_path: Path) -> None:
    values = random_values(SHAPE)
    tensors = stored_values(values)
    tensors["model.visual.blocks.0.attn.qkv.bias"] = writer.stored("BF16", np.zeros(9))
    tensors["model.visual.patch_embed.proj.weight"] = writer.stored("BF16", np.zeros((4, 3, 2, 2, 2)))
    assert_bound(write_checkpoint(tmp_path / "m", SHAPE, tensors), values)


def test_bf16_stays_bf16_and_stacked_parts_agree(tmp_path: Path) -> None:
    values = random_values(SHAPE)
    tensors = stored_values(values)
    name = "layers.0.mlp.up_proj.weight"
    tensors[spell(name)] = writer.stored("F32", values[name])
    spec, checkpoint = open_folder(write_checkpoint(tmp_path / "m", SHAPE, tensors))
    weights, _ = bind(spec, checkpoint)
    assert weights.embedding.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert weights.layers[0].mlp.gate_up.weight.dtype == torch.float32  # type: ignore[union-attr]
    assert weights.layers[0].mlp.down.weight.dtype == torch.bfloat16  # type: ignore[union-attr]


Packer = Callable[[writer.Int4], dict[str, Stored]]


@pytest.mark.parametrize(
    ("config", "pack"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}, writer.gptq),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"},
            lambda m: writer.gptq(m, v2=True, with_index=False),
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, writer.awq),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}},
            },
            lambda m: writer.pack_quantized(m, symmetric=False),
        ),
    ],
    ids=["gptq", "gptq_v2", "awq", "compressed-tensors"],
)
def test_int4_checkpoints(tmp_path: Path, config: dict[str, Any], pack: Packer) -> None:
    values = random_values(SHAPE)
    tensors = stored_values(values)
    for seed, name in enumerate(
        ("layers.0.mlp.gate_proj", "layers.3.self_attn.q_proj", "layers.1.linear_attn.out_proj")
    ):
        num_rows, num_cols = values[f"{name}.weight"].shape
        matrix = writer.random_int4(num_rows, num_cols, 32 if num_cols % 64 else 64, symmetric=False, seed=seed)
        del tensors[spell(f"{name}.weight")]
        tensors |= {f"{spell(name)}.{suffix}": part for suffix, part in pack(matrix).items()}
        values[f"{name}.weight"] = matrix.values
    assert_bound(write_checkpoint(tmp_path / "m", SHAPE, tensors, quantization_config=config), values)


def test_fp8_checkpoint(tmp_path: Path) -> None:
    values = random_values(SHAPE)
    tensors = stored_values(values)
    name = "layers.2.mlp.down_proj.weight"
    codes = np.random.default_rng(1).integers(0, 120, values[name].shape, dtype=np.uint8)
    scale = np.full((1, 2), 0.25, dtype=np.float32)
    tensors[spell(name)] = writer.stored("F8_E4M3", codes)
    tensors[f"{spell(name)}_scale_inv"] = writer.stored("F32", scale)
    values[name] = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy() * np.float32(0.25)
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    assert_bound(write_checkpoint(tmp_path / "m", SHAPE, tensors, quantization_config=config), values)


def refusal(folder: Path) -> str:
    with pytest.raises(SetupError) as caught:
        spec, checkpoint = open_folder(folder)
        reserve_weights(spec, checkpoint, LayoutBuilder())
    assert "\n" not in caught.value.message
    return caught.value.message


def test_missing_surplus_and_misshapen_tensors_are_named_as_the_file_spells_them(tmp_path: Path) -> None:
    tensors = stored_values(random_values(SHAPE))
    kept = dict(tensors)
    del kept["mtp.fc.weight"], kept["model.language_model.layers.2.linear_attn.A_log"]
    message = refusal(write_checkpoint(tmp_path / "a", SHAPE, kept))
    assert "tensors missing: model.language_model.layers.2.linear_attn.A_log; mtp.fc.weight" in message

    extra = tensors | {"model.language_model.layers.0.mlp.gate_proj.bias": writer.stored("BF16", np.zeros(192))}
    message = refusal(write_checkpoint(tmp_path / "b", SHAPE, extra))
    assert "not part of this model: model.language_model.layers.0.mlp.gate_proj.bias" in message

    message = refusal(write_checkpoint(tmp_path / "c", SHAPE, tensors | {"lora.a": writer.stored("F32", np.zeros(2))}))
    assert "not part of this model: lora.a" in message

    tied_head = tensors | {"lm_head.weight": writer.stored("BF16", np.zeros((2048, 64)))}
    assert "not part of this model: lm_head.weight" in refusal(write_checkpoint(tmp_path / "d", SHAPE, tied_head))

    narrow = tensors | {"mtp.norm.weight": writer.stored("BF16", np.zeros(63))}
    message = refusal(write_checkpoint(tmp_path / "e", SHAPE, narrow))
    assert "misshapen: mtp.norm.weight is [63], expected [64]" in message


def test_another_vocabulary_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", Shape(vocab=1000), stored_values(random_values(SHAPE)))
    assert "embed_tokens.weight is [2048, 64], expected [1000, 64]" in refusal(folder)


def test_codes_without_a_quantization_config_are_named(tmp_path: Path) -> None:
    tensors = stored_values(random_values(SHAPE))
    tensors[spell("norm.weight")] = writer.stored("F8_E4M3", np.zeros(64, dtype=np.uint8))
    message = refusal(write_checkpoint(tmp_path / "m", SHAPE, tensors))
    assert "tensor model.language_model.norm.weight is stored as F8_E4M3; supported: F32, F16, BF16" in message


def test_companion_without_its_matrix_is_named(tmp_path: Path) -> None:
    tensors = stored_values(random_values(SHAPE))
    name = spell("layers.0.mlp.down_proj.weight")
    tensors[f"{name}_scale_inv"] = writer.stored("F32", np.zeros((1, 2)))
    del tensors[name]
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    message = refusal(write_checkpoint(tmp_path / "m", SHAPE, tensors, quantization_config=config))
    assert f"tensor {name} is missing beside {name}_scale_inv" in message


@pytest.mark.parametrize(
    "tensor", ["embed_tokens.weight", "layers.0.linear_attn.A_log", "mtp.layers.0.mlp.up_proj.weight"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(tmp_path: Path, tensor: str, value: float) -> None:
    values = random_values(SHAPE)
    values[tensor].reshape(-1)[-1] = value
    spec, checkpoint = open_folder(write_checkpoint(tmp_path / "m", SHAPE, stored_values(values)))
    with pytest.raises(SetupError, match=f"tensor {spell(tensor)} has weights that are not finite"):
        bind(spec, checkpoint)


def test_spec_of_another_model_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", SHAPE, stored_values(random_values(SHAPE)))
    _, checkpoint = open_folder(folder)
    with pytest.raises(SetupError, match="is not tiny-hybrid: hidden_size: 64, expected 128"):
        reserve_weights(lookup("tiny-hybrid").spec, checkpoint, LayoutBuilder())
