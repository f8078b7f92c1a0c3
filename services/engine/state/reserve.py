"""Which regions of the memory plan the live sequence takes: keys and values, recurrent state, records of proposals.

Owns shapes and names; no torch, so that `plan` and the engine's start reserve with the same functions.
"""

from dataclasses import dataclass
from typing import Literal

from contracts.errors import SetupError
from engine.memory.layout import DType, Handle, LayoutBuilder
from engine.ops.kv_layout import KvLayout, is_rotated
from engine.spec import DeltaDims, KvFormat, ModelSpec

PlainFormat = Literal["fp32", "bf16"]
_CODE_DTYPES: dict[KvFormat, DType] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8", "rk4v4-e8": "int32"}


@dataclass(frozen=True, slots=True)
class KvHandles:
    """The cache's regions; the expanded ones exist when the stored form is not fp32."""

    keys: Handle
    values: Handle
    expanded_keys: Handle | None
    expanded_values: Handle | None


def plain_format(kv_format: KvFormat) -> PlainFormat:
    """The format, if this version can store it.

    Raises: SetupError naming the formats that work.
    """
    if kv_format not in ("fp32", "bf16"):
        raise SetupError(f"KV format {kv_format} is not supported by this version; supported: bf16, fp32")
    return kv_format


def reserve_kv(builder: LayoutBuilder, spec: ModelSpec, kv_format: PlainFormat, num_positions: int) -> KvHandles:
    """Plan arrays of num_positions for every attention layer, and one layer's fp32 form of them."""
    dims = spec.attention
    rows = (num_positions, dims.num_kv_heads, dims.head_dim)
    shape = (spec.num_attention_layers, *rows)
    keys = builder.reserve("kv.keys", shape, kv_format)
    values = builder.reserve("kv.values", shape, kv_format)
    if kv_format == "fp32":
        return KvHandles(keys, values, None, None)
    expanded_keys = builder.reserve("workspace.kv_keys", rows, "fp32")
    expanded_values = builder.reserve("workspace.kv_values", rows, "fp32")
    return KvHandles(keys, values, expanded_keys, expanded_values)


@dataclass(frozen=True, slots=True)
class CodeHandles:
    """One side of a cache of several layers; plain formats have no scales, only rotated ones are centred.

    Shapes:  codes [La, N, Hkv, columns]; scales [La, Hkv, G, N] fp16; centres [La, Hkv, D] fp32. One layer is a slice
             that `ops/kv_codec` fills.
    """

    codes: Handle
    scales: Handle | None
    centres: Handle | None


@dataclass(frozen=True, slots=True)
class CacheHandles:
    """Keys and values of several attention layers in one format."""

    keys: CodeHandles
    values: CodeHandles


@dataclass(frozen=True, slots=True)
class DeltaHandles:
    """One image of all delta layers' state: recurrent [Ld, Hv, K, V] fp32, conv [Ld, 3, C]."""

    recurrent: Handle
    conv: Handle


@dataclass(frozen=True, slots=True)
class ReplayHandles:
    """What a rollback needs of every proposed column, in all delta layers: the fields of a replay record.

    Shapes:  k [Ld, M, Hk, K], u [Ld, M, Hv, V], g and beta [Ld, M, Hv] fp32; columns [Ld, M, C].
    """

    k: Handle
    u: Handle
    g: Handle
    beta: Handle
    columns: Handle


def reserve_cache(
    builder: LayoutBuilder, prefix: str, layout: KvLayout, num_layers: int, num_positions: int
) -> CacheHandles:
    """Plan a flat timeline of num_positions for num_layers layers in any KV format, under prefix."""

    def side(name: str) -> CodeHandles:
        scales = centres = None
        codes = builder.reserve(
            f"{prefix}.{name}", (num_layers, *layout.code_shape(num_positions)), _CODE_DTYPES[layout.kv_format]
        )
        if layout.num_groups:
            scales = builder.reserve(
                f"{prefix}.{name}_scales", (num_layers, *layout.scale_shape(num_positions)), "fp16"
            )
        if is_rotated(layout.kv_format):
            shape = (num_layers, layout.num_kv_heads, layout.head_dim)
            centres = builder.reserve(f"{prefix}.{name}_centres", shape, "fp32")
        return CodeHandles(codes, scales, centres)

    return CacheHandles(side("keys"), side("values"))


def reserve_delta_state(builder: LayoutBuilder, prefix: str, spec: ModelSpec, conv_dtype: DType) -> DeltaHandles:
    """Plan one image of the recurrent state under prefix; conv_dtype is that of the activations."""
    dims, num_layers = _delta(spec), spec.schedule.count("delta")
    recurrent = (num_layers, dims.num_value_heads, dims.key_dim, dims.value_dim)
    return DeltaHandles(
        recurrent=builder.reserve(f"{prefix}.recurrent", recurrent, "fp32"),
        conv=builder.reserve(f"{prefix}.conv", (num_layers, dims.conv_width - 1, dims.num_conv_channels), conv_dtype),
    )


def reserve_replay(
    builder: LayoutBuilder, prefix: str, spec: ModelSpec, num_columns: int, conv_dtype: DType
) -> ReplayHandles:
    """Plan the record of num_columns proposed columns under prefix."""
    dims, num_layers = _delta(spec), spec.schedule.count("delta")

    def field(name: str, *axes: int, dtype: DType = "fp32") -> Handle:
        return builder.reserve(f"{prefix}.{name}", (num_layers, num_columns, *axes), dtype)

    return ReplayHandles(
        k=field("k", dims.num_key_heads, dims.key_dim),
        u=field("u", dims.num_value_heads, dims.value_dim),
        g=field("g", dims.num_value_heads),
        beta=field("beta", dims.num_value_heads),
        columns=field("columns", dims.num_conv_channels, dtype=conv_dtype),
    )


def _delta(spec: ModelSpec) -> DeltaDims:
    assert spec.delta is not None, f"{spec.name} has no delta layers"
    return spec.delta
