"""What a public checkpoint's config.json says: the ModelSpec, and how its matrices are quantised. Owns the reading.

Only what this version runs is accepted; anything else is refused with the field, its value and what is supported.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from contracts.errors import SetupError
from engine.spec import AttentionDims, DeltaDims, LayerKind, ModelSpec

CONFIG_NAME = "config.json"
SUPPORTED = "qwen3_5, qwen3_5_text"
_REFUSED = {
    "qwen3_5_moe": "it has expert layers",
    "qwen3_5_moe_text": "it has expert layers",
    "qwen3_next": "its projections are laid out differently",
    "qwen4_exp": "its layers are of other kinds",
}
_LAYER_KINDS: dict[str, LayerKind] = {"linear_attention": "delta", "full_attention": "attention"}
_FP8_BLOCK = [128, 128]

Method = Literal["fp8", "gptq", "gptq_v2", "awq", "pack-quantized"]


@dataclass(frozen=True, slots=True)
class HfConfig:
    """A checkpoint's own description; quantization is None where all matrices are numbers."""

    spec: ModelSpec
    quantization: Method | None


def read_config(folder: Path, name: str) -> HfConfig:
    """Read folder/config.json; the spec gets the name.

    Raises: SetupError naming what is missing, unsupported or contradictory.
    """
    path = folder / CONFIG_NAME
    try:
        content = path.read_bytes()
        _require_architecture(path, msgspec.json.decode(content, type=_Kind).model_type)
        top = msgspec.json.decode(content, type=_Top)
        text = top.text_config or msgspec.json.decode(content, type=_Text)
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    _require_architecture(path, text.model_type)
    tied = text.tie_word_embeddings if top.tie_word_embeddings is None else top.tie_word_embeddings
    return HfConfig(_Reading(path, text).spec(name, tied=tied), _method(path, top.quantization_config))


class _Rope(msgspec.Struct):
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    mrope_interleaved: bool = True
    rope_type: str = "default"


class _Text(msgspec.Struct):
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    max_position_embeddings: int
    rope_parameters: _Rope
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    output_gate_type: str = "swish"
    attn_output_gate: bool = True
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    full_attention_interval: int = 4
    layer_types: list[str] | None = None
    mtp_num_hidden_layers: int = 0
    mtp_use_dedicated_embeddings: bool = False


class _WeightScheme(msgspec.Struct):
    num_bits: int
    type: str


class _Group(msgspec.Struct):
    weights: _WeightScheme | None = None


class _Quantization(msgspec.Struct):
    quant_method: str = ""
    bits: int = 4
    weight_block_size: list[int] | None = None
    checkpoint_format: str = "gptq"
    version: str = "gemm"
    format: str = ""
    config_groups: dict[str, _Group] = {}


class _Kind(msgspec.Struct):
    model_type: str = ""


class _Top(msgspec.Struct):
    text_config: _Text | None = None
    tie_word_embeddings: bool | None = None
    quantization_config: _Quantization | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    """Checks one text configuration and turns it into a spec."""

    path: Path
    text: _Text

    def spec(self, name: str, *, tied: bool) -> ModelSpec:
        text = self.text
        self._check()
        return ModelSpec(
            name=name,
            family="qwen3_5",
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            schedule=self._schedule(),
            attention=self._attention(),
            delta=DeltaDims(
                num_key_heads=text.linear_num_key_heads,
                num_value_heads=text.linear_num_value_heads,
                key_dim=text.linear_key_head_dim,
                value_dim=text.linear_value_head_dim,
                conv_width=text.linear_conv_kernel_dim,
            ),
            norm_eps=text.rms_norm_eps,
            norm_offset=1.0,
            tied_embedding=tied,
            context_limit=text.max_position_embeddings,
            mtp_layers=text.mtp_num_hidden_layers,
            default_kv_format="bf16",
        )

    def _check(self) -> None:
        text = self.text
        self._require("output_gate_type", text.output_gate_type, "swish", "silu")
        self._require("hidden_act", text.hidden_act, "silu")
        self._require("attention_bias", text.attention_bias, False)
        self._require("attn_output_gate", text.attn_output_gate, True)
        self._require("mtp_num_hidden_layers", text.mtp_num_hidden_layers, 0, 1)
        self._require("mtp_use_dedicated_embeddings", text.mtp_use_dedicated_embeddings, False)
        self._require("rope_parameters.rope_type", text.rope_parameters.rope_type, "default")
        self._require("rope_parameters.mrope_interleaved", text.rope_parameters.mrope_interleaved, True)
        counts = {field: getattr(text, field) for field in _COUNTS}
        for field, value in counts.items():
            if value < 1:
                raise SetupError(f"{self.path}: {field} is {value}, expected at least 1")
        self._require_share("num_attention_heads", "num_key_value_heads")
        self._require_share("linear_num_value_heads", "linear_num_key_heads")

    def _require(self, field: str, value: object, *supported: object) -> None:
        if value not in supported:
            listed = " or ".join(repr(one) for one in supported)
            raise SetupError(f"{self.path}: {field} is {value!r}, this version supports {listed}")

    def _require_share(self, many: str, few: str) -> None:
        if getattr(self.text, many) % getattr(self.text, few):
            values = f"{many} {getattr(self.text, many)}, {few} {getattr(self.text, few)}"
            raise SetupError(f"{self.path}: {values}: the second must divide the first")

    def _schedule(self) -> tuple[LayerKind, ...]:
        text = self.text
        interval, count = text.full_attention_interval, text.num_hidden_layers
        listed = text.layer_types
        if listed is None:
            listed = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
        if len(listed) != count:
            raise SetupError(f"{self.path}: layer_types has {len(listed)} entries, num_hidden_layers is {count}")
        for kind in listed:
            self._require("layer_types", kind, *_LAYER_KINDS)
        self._require("layer_types", "linear_attention" in listed, True)
        return tuple(_LAYER_KINDS[kind] for kind in listed)

    def _attention(self) -> AttentionDims:
        text, rope = self.text, self.text.rope_parameters
        rotary_dims = round(text.head_dim * rope.partial_rotary_factor)
        if rotary_dims % 2 or not 0 < rotary_dims <= text.head_dim or sum(rope.mrope_section) != rotary_dims // 2:
            raise SetupError(
                f"{self.path}: mrope_section {list(rope.mrope_section)} does not add up to half of the {rotary_dims} "
                f"rotary dims that partial_rotary_factor {rope.partial_rotary_factor} of {text.head_dim} gives"
            )
        return AttentionDims(
            num_heads=text.num_attention_heads,
            num_kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            rotary_dims=rotary_dims,
            rope_theta=rope.rope_theta,
            gated=True,
            qk_norm=True,
            mrope_sections=rope.mrope_section,
        )


_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "max_position_embeddings", "full_attention_interval",
)  # fmt: skip


def _require_architecture(path: Path, model_type: str) -> None:
    if model_type not in ("qwen3_5", "qwen3_5_text"):
        reason = f": {_REFUSED[model_type]}" if model_type in _REFUSED else ""
        raise SetupError(
            f"{path}: architecture {model_type!r} is not supported by this version{reason}; supported: {SUPPORTED}"
        )


def _method(path: Path, quantization: _Quantization | None) -> Method | None:
    if quantization is None:
        return None
    match quantization.quant_method:
        case "fp8" if quantization.weight_block_size == _FP8_BLOCK:
            return "fp8"
        case "gptq" if quantization.bits == 4 and quantization.checkpoint_format == "gptq":
            return "gptq"
        case "gptq" if quantization.bits == 4 and quantization.checkpoint_format == "gptq_v2":
            return "gptq_v2"
        case "awq" if quantization.bits == 4 and quantization.version == "gemm":
            return "awq"
        case "compressed-tensors" if _is_int4(quantization):
            return "pack-quantized"
    raise SetupError(
        f"{path}: quantization_config {_describe(quantization)} is not supported by this version; supported: fp8 with "
        "weight_block_size [128, 128], gptq and awq (gemm) of 4 bits, compressed-tensors pack-quantized of int 4 bits"
    )


def _is_int4(quantization: _Quantization) -> bool:
    schemes = [group.weights for group in quantization.config_groups.values()]
    return quantization.format == "pack-quantized" and all(
        scheme is not None and scheme.num_bits == 4 and scheme.type == "int" for scheme in schemes
    )


def _describe(quantization: _Quantization) -> str:
    return msgspec.json.encode(quantization).decode()
