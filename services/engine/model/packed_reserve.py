"""Which regions an executor takes that multiplies packed weights, as a card's kernels do: cache, state, scratch.

Owns shapes and names; no torch. Activations are bf16 with an fp32 residual stream, attention reads the cache's codes as
they are, so there are no fp32 copies of weights, keys or values; `reserve.py` is the reference executor's list.
"""

from dataclasses import dataclass

from engine.memory.layout import DType, Handle, LayoutBuilder
from engine.ops.attention_layout import round_up_to_grid
from engine.ops.kv_layout import kv_layout
from engine.spec import DeltaDims, KvFormat, ModelSpec
from engine.state.reserve import (
    CacheHandles,
    DeltaHandles,
    ReplayHandles,
    reserve_cache,
    reserve_delta_state,
    reserve_replay,
)

# Split-KV attention: each split leaves an unnormalised row, its maximum and its sum behind, in fp32.
ATTENTION_SPLITS = 64


@dataclass(frozen=True, slots=True)
class PackedWindow:
    """What of the plan a user may choose; num_drafts 0 leaves the MTP head's cache out."""

    kv_format: KvFormat
    context_limit: int
    chunk_tokens: int
    num_drafts: int


@dataclass(frozen=True, slots=True)
class PackedHandles:
    """Regions of one executor besides its weights; staging is where a state image waits for its copy to the host."""

    cache: CacheHandles
    mtp_cache: CacheHandles | None
    state: DeltaHandles | None
    staging: DeltaHandles | None
    replay: ReplayHandles | None
    workspace: dict[str, Handle]


def reserve_packed(builder: LayoutBuilder, spec: ModelSpec, window: PackedWindow) -> PackedHandles:
    """Plan everything but the weights.

    Raises: ValueError when the KV format cannot hold the model's head_dim.
    """
    dims = spec.attention
    layout = kv_layout(window.kv_format, dims.num_kv_heads, dims.head_dim)
    num_columns = 1 + window.num_drafts
    num_positions = round_up_to_grid(window.context_limit + window.num_drafts)  # drafts run past the window's end
    has_mtp = spec.mtp_layers > 0 and window.num_drafts > 0
    return PackedHandles(
        cache=reserve_cache(builder, "kv", layout, spec.num_attention_layers, num_positions),
        mtp_cache=reserve_cache(builder, "mtp_kv", layout, spec.mtp_layers, num_positions) if has_mtp else None,
        state=reserve_delta_state(builder, "state", spec, "bf16") if spec.delta else None,
        staging=reserve_delta_state(builder, "staging", spec, "bf16") if spec.delta else None,
        replay=reserve_replay(builder, "replay", spec, num_columns, "bf16") if spec.delta else None,
        workspace=_reserve_workspace(builder, spec, window.chunk_tokens, num_columns),
    )


def _reserve_workspace(
    builder: LayoutBuilder, spec: ModelSpec, chunk_tokens: int, num_columns: int
) -> dict[str, Handle]:
    """Activations of one chunk, partial results of split attention, logits and counts of one round."""
    dims, hidden = spec.attention, spec.hidden_size
    mixer_cols, mixed_cols = dims.num_q_rows + 2 * dims.num_kv_rows, dims.num_output_cols
    if spec.delta is not None:
        mixer_cols, mixed_cols = max(mixer_cols, _delta_cols(spec.delta)), max(mixed_cols, _value_cols(spec.delta))
    partials = (num_columns * dims.num_heads * ATTENTION_SPLITS, dims.head_dim + 2)
    shapes: dict[str, tuple[tuple[int, ...], DType]] = {
        "residual": ((chunk_tokens, hidden), "fp32"),
        "normed": ((chunk_tokens, hidden), "bf16"),
        "mixer": ((chunk_tokens, mixer_cols), "bf16"),
        "mixed": ((chunk_tokens, mixed_cols), "bf16"),
        "gate_up": ((chunk_tokens, 2 * spec.intermediate_size), "bf16"),
        "attention": (partials, "fp32"),
        "logits": ((num_columns, spec.vocab_size), "fp32"),
        "counts": ((2, spec.vocab_size), "int32"),  # of the output and of everything, for the penalties
    }
    if spec.delta is not None:
        # The chunked form keeps two rows of a head's width per token: corrected values and decayed keys.
        delta_cols = spec.delta.num_value_heads * (spec.delta.value_dim + spec.delta.key_dim)
        shapes["delta"] = ((chunk_tokens, delta_cols), "fp32")
    if spec.mtp_layers:
        shapes["mtp"] = ((chunk_tokens, 2 * hidden), "bf16")  # embedding and hidden state side by side
        shapes["hidden"] = ((num_columns, hidden), "fp32")  # of a round's columns, behind the final norm
    return {name: builder.reserve(f"workspace.{name}", shape, dtype) for name, (shape, dtype) in shapes.items()}


def _delta_cols(dims: DeltaDims) -> int:
    """Outputs of a delta layer's input products: convolution channels, z, and the two gates."""
    return dims.num_conv_channels + _value_cols(dims) + 2 * dims.num_value_heads


def _value_cols(dims: DeltaDims) -> int:
    return dims.num_value_heads * dims.value_dim
