"""Which regions of the memory plan the live sequence takes: keys and values, recurrent state, records of proposals.

Owns shapes and names; no torch, so that `plan` and the engine's start reserve with the same functions.
"""

from dataclasses import dataclass

from engine.memory.layout import DType, Handle, LayoutBuilder
from engine.ops.kv_layout import KvLayout, is_rotated, kv_layout
from engine.spec import DeltaDims, KvFormat, ModelSpec

_CODE_DTYPES: dict[KvFormat, DType] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8", "rk4v4-e8": "int32"}


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
class KvHandles:
    """What the reference executor keeps of keys and values: the cache, the MTP head's where drafts are planned, and one
    layer's fp32 form of both sides [N, Hkv, D], which attention reads, where the codes are not that.
    """

    kv_format: KvFormat
    main: CacheHandles
    mtp: CacheHandles | None
    expanded_keys: Handle | None
    expanded_values: Handle | None


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


def reserve_kv(
    builder: LayoutBuilder, spec: ModelSpec, kv_format: KvFormat, num_positions: int, *, with_mtp: bool
) -> KvHandles:
    """Plan a timeline of num_positions for every attention layer, and for the MTP head's.

    Raises: ValueError when the format cannot hold the model's head_dim.
    """
    layout = kv_layout(kv_format, spec.attention.num_kv_heads, spec.attention.head_dim)
    main = reserve_cache(builder, "kv", layout, spec.num_attention_layers, num_positions)
    mtp = reserve_cache(builder, "mtp_kv", layout, spec.mtp_layers, num_positions) if with_mtp else None
    if kv_format == "fp32":
        return KvHandles(kv_format, main, mtp, None, None)
    rows = (num_positions, layout.num_kv_heads, layout.head_dim)
    expanded_keys = builder.reserve("workspace.kv_keys", rows, "fp32")
    return KvHandles(kv_format, main, mtp, expanded_keys, builder.reserve("workspace.kv_values", rows, "fp32"))


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
