"""Which regions of the memory plan the live sequence takes: keys and values. Owns shapes and names; no torch."""

from dataclasses import dataclass
from typing import Literal

from contracts.errors import SetupError
from engine.memory.layout import Handle, LayoutBuilder
from engine.spec import KvFormat, ModelSpec

PlainFormat = Literal["fp32", "bf16"]


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
