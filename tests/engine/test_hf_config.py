"""config.json: what is accepted becomes the right spec, all else is refused with field, value and what is supported."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import SetupError
from engine.hf_config import read_config
from engine.registry import lookup
from support.hybrid_checkpoint import TINY_HYBRID, Shape


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def text(**changes: Any) -> dict[str, Any]:
    return Shape(changes=changes).text_config()


def nested(**changes: Any) -> dict[str, Any]:
    return {"model_type": "qwen3_5", "tie_word_embeddings": True, "text_config": text(**changes)}


def refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(SetupError) as caught:
        read_config(write(folder, config), "x")
    assert "\n" not in caught.value.message
    return caught.value.message


PUBLISHED_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "image_token_id": 248056,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 5120, "intermediate_size": 17408,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_act": "silu", "rms_norm_eps": 1e-06, "max_position_embeddings": 262144, "attention_bias": False,
        "attn_output_gate": True, "tie_word_embeddings": False, "full_attention_interval": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "eos_token_id": 248044, "output_gate_type": "swish",
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
    },
    "vision_config": {"model_type": "qwen3_5", "depth": 27, "hidden_size": 1152},
}  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3.5-27b", "qwen3.6-27b", "qwen3.8-27b"])
def test_published_config_of_the_27b_is_the_registered_spec(tmp_path: Path, name: str) -> None:
    found = read_config(write(tmp_path, PUBLISHED_27B), name)
    registered = lookup(name).spec
    assert found.quantization is None
    for field in registered.__dataclass_fields__:
        if field not in ("default_kv_format", "dead_token_rows"):
            assert getattr(found.spec, field) == getattr(registered, field), field
    assert registered.default_kv_format == "rk4v4-e8" and registered.vocab_size - registered.dead_token_rows == 248077


def test_flat_and_nested_forms_agree(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, nested()), "x") == read_config(write(tmp_path, text()), "x")


def test_layer_types_are_explicit_or_every_fourth(tmp_path: Path) -> None:
    derived = read_config(write(tmp_path, nested()), "x").spec
    assert derived.schedule == ("delta", "delta", "delta", "attention")
    listed = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    assert read_config(write(tmp_path, nested(layer_types=listed)), "x").spec.schedule == (
        "attention", "delta", "delta", "attention",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("qwen3_5_moe", "it has expert layers"),
        ("qwen3_next", "its projections are laid out differently"),
        ("qwen4_exp", "its layers are of other kinds"),
    ],
)
def test_relatives_are_refused_by_name(tmp_path: Path, model_type: str, reason: str) -> None:
    message = refusal(tmp_path, {"model_type": model_type, "text_config": {"anything": 1}})
    assert f"architecture {model_type!r} is not supported by this version: {reason}; supported: qwen3_5" in message


@pytest.mark.parametrize("model_type", ["llama", "", "QWEN3_5"])
def test_unknown_architectures_are_refused_with_the_list(tmp_path: Path, model_type: str) -> None:
    message = refusal(tmp_path, {"model_type": model_type})
    assert f"architecture {model_type!r} is not supported by this version; supported: qwen3_5, qwen3_5_text" in message


def test_moe_inside_a_dense_shell_is_refused(tmp_path: Path) -> None:
    assert "'qwen3_5_moe_text' is not supported" in refusal(tmp_path, nested(model_type="qwen3_5_moe_text"))


ROPE = Shape().text_config()["rope_parameters"]


@pytest.mark.parametrize(
    ("changes", "text_"),
    [
        ({"output_gate_type": "sigmoid"}, "output_gate_type is 'sigmoid', this version supports 'swish' or 'silu'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings is True"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types has 3 entries, num_hidden_layers is 4"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types is 'sliding_attention'"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types is False"),
        ({"rope_parameters": ROPE | {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_parameters": ROPE | {"mrope_interleaved": False}}, "mrope_interleaved is False"),
        ({"rope_parameters": ROPE | {"mrope_section": [3, 3, 3]}}, "mrope_section [3, 3, 3] does not add up"),
        ({"num_key_value_heads": 3}, "num_attention_heads 2, num_key_value_heads 3: the second must divide the first"),
        ({"linear_num_key_heads": 4}, "linear_num_value_heads 6, linear_num_key_heads 4"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"hidden_size": "64"}, "Expected `int`, got `str`"),
        ({"head_dim": None}, "Expected `int`, got `null`"),
    ],
)
def test_unsupported_values_are_named(tmp_path: Path, changes: dict[str, Any], text_: str) -> None:
    assert text_ in refusal(tmp_path, nested(**changes))


def test_silu_is_swish(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, nested(output_gate_type="silu")), "x").spec.norm_offset == 1.0


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, "fp8"),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*": {}}}, "gptq"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, "gptq_v2"),
        ({"quant_method": "gptq", "bits": 8}, None),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, None),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "pack-quantized",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            None,
        ),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, None),
        ({"quant_method": "bitsandbytes"}, None),
    ],
)
def test_quantisation_is_recognised_or_refused(tmp_path: Path, config: dict[str, Any], method: str | None) -> None:
    top = nested() | {"quantization_config": config}
    if method is not None:
        assert read_config(write(tmp_path, top), "x").quantization == method
    else:
        assert "is not supported by this version; supported: fp8 with weight_block_size" in refusal(tmp_path, top)


def test_file_that_is_no_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"config\.json cannot be read"):
        read_config(tmp_path, "x")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SetupError, match=r"config\.json cannot be read"):
        read_config(tmp_path, "x")


def test_tiny_hybrid_is_read(tmp_path: Path) -> None:
    assert read_config(TINY_HYBRID, "tiny-hybrid").spec.mtp_layers == 1
