"""Which regions of the memory plan a decoder takes besides its weights: cache, state, scratch, expanded matrices.

Owns shapes and names; no torch, so that `plan` and the engine's start reserve with the same functions.
"""

from dataclasses import dataclass

from engine.memory.layout import Handle, LayoutBuilder
from engine.ops.attention_layout import num_columns
from engine.spec import DeltaDims, KvFormat, ModelSpec
from engine.state.reserve import (
    DeltaHandles,
    KvHandles,
    ReplayHandles,
    reserve_delta_state,
    reserve_kv,
    reserve_replay,
)

# Fewer rows take other sums in the library, so a shorter batch is filled up with rows that are forgotten.
MIN_BATCH_ROWS = 16
# Pairs that wait for the MTP head before they are fed to its cache.
MAX_PENDING_PAIRS = 16
_BLOCK_ROWS = 64
_MAX_SCORE_ELEMENTS = 8 << 20  # 32 MiB: fewer rows at a time where the window is long


@dataclass(frozen=True, slots=True)
class WorkspaceHandles:
    """The workspace's regions, and how many rows one block of attention scores has; None where no layer needs it."""

    residual: Handle
    qkv: Handle
    attended: Handle
    gate_up: Handle
    delta_inputs: Handle | None
    delta_gates: Handle | None
    delta_heads: Handle | None
    scores: Handle
    logits: Handle
    block_rows: int


@dataclass(frozen=True, slots=True)
class MtpHandles:
    """The MTP head's waiting rows and its logits; its keys and values are with the cache's."""

    hidden: Handle
    embedded: Handle
    logits: Handle


@dataclass(frozen=True, slots=True)
class DecoderHandles:
    """Regions of one decoder besides its packed weights.

    state and replay are None without delta layers, mtp where no drafts by the MTP head are planned.
    """

    cache: KvHandles
    state: DeltaHandles | None
    replay: ReplayHandles | None
    workspace: WorkspaceHandles
    mtp: MtpHandles | None
    expanded: dict[str, Handle]


def reserve_decoder(
    builder: LayoutBuilder,
    spec: ModelSpec,
    kv_format: KvFormat,
    context_limit: int,
    chunk_tokens: int,
    num_drafts: int = 0,
) -> DecoderHandles:
    """Plan cache, state, workspace and expanded matrices of a window of context_limit positions.

    num_drafts is how many tokens a round may guess; the MTP head is planned where there are some and the model has one.
    Raises: ValueError when the format cannot hold the model's head_dim.
    """
    num_rows = max(chunk_tokens, MIN_BATCH_ROWS)
    # Room for a batch filled up at the window's end, and for the columns of a round that begins there.
    num_positions = num_columns(context_limit, max(MIN_BATCH_ROWS, 2 + num_drafts))
    with_mtp = num_drafts > 0 and spec.mtp_layers > 0
    is_recurrent = spec.delta is not None
    return DecoderHandles(
        cache=reserve_kv(builder, spec, kv_format, num_positions, with_mtp=with_mtp),
        state=reserve_delta_state(builder, "state", spec, "fp32") if is_recurrent else None,
        replay=reserve_replay(builder, "replay", spec, 1 + num_drafts, "fp32") if is_recurrent else None,
        workspace=reserve_workspace(builder, spec, num_rows, num_positions, 1 + num_drafts),
        mtp=_reserve_mtp(builder, spec, num_rows) if with_mtp else None,
        expanded=reserve_expanded(builder, spec, with_mtp=with_mtp),
    )


def reserve_workspace(
    builder: LayoutBuilder, spec: ModelSpec, num_rows: int, num_positions: int, num_logits: int
) -> WorkspaceHandles:
    """Plan scratch for passes of num_rows over a timeline of num_positions, and num_logits rows of logits."""
    dims = spec.attention
    block_rows = _block_rows(dims.num_heads, num_positions)
    num_scores = dims.num_heads * block_rows * num_positions

    def rows(name: str, num_cols: int) -> Handle:
        return builder.reserve(f"workspace.{name}", (num_rows, num_cols), "fp32")

    delta = spec.delta
    return WorkspaceHandles(
        residual=rows("residual", spec.hidden_size),
        qkv=rows("qkv", dims.num_q_rows + 2 * dims.num_kv_rows),
        attended=rows("attended", dims.num_output_cols),
        gate_up=rows("gate_up", 2 * spec.intermediate_size),
        delta_inputs=None if delta is None else rows("delta_inputs", delta.num_conv_channels + _num_values(delta)),
        delta_gates=None if delta is None else rows("delta_gates", 2 * delta.num_value_heads),
        delta_heads=None if delta is None else rows("delta_heads", _num_values(delta)),
        scores=builder.reserve("workspace.scores", (num_scores,), "fp32"),
        logits=builder.reserve("workspace.logits", (num_logits, spec.vocab_size), "fp32"),
        block_rows=block_rows,
    )


def reserve_expanded(builder: LayoutBuilder, spec: ModelSpec, *, with_mtp: bool) -> dict[str, Handle]:
    """Plan one region per matrix of the decoder, and per constant of a delta layer, named after it."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"head": (hidden, spec.vocab_size)}
    for index, kind in enumerate(spec.schedule):
        mixer = _attention_shapes(spec) if kind == "attention" else _delta_shapes(spec)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in (mixer | _mlp_shapes(spec)).items()}
    if with_mtp:
        shapes["mtp.projection"] = (2 * hidden, hidden)
        layer = _attention_shapes(spec) | _mlp_shapes(spec)
        shapes |= {f"mtp.layer.{name}": shape for name, shape in layer.items()}
    return {name: builder.reserve(f"expanded.{name}", shape, "fp32") for name, shape in shapes.items()}


def _reserve_mtp(builder: LayoutBuilder, spec: ModelSpec, num_rows: int) -> MtpHandles:
    shape = (max(num_rows, MAX_PENDING_PAIRS) + 1, spec.hidden_size)
    return MtpHandles(
        hidden=builder.reserve("workspace.mtp_hidden", shape, "fp32"),
        embedded=builder.reserve("workspace.mtp_embedded", shape, "fp32"),
        logits=builder.reserve("workspace.mtp_logits", (1, spec.vocab_size), "fp32"),
    )


def _attention_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    dims, hidden = spec.attention, spec.hidden_size
    return {"qkv": (hidden, dims.num_q_rows + 2 * dims.num_kv_rows), "output": (dims.num_output_cols, hidden)}


def _mlp_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return {"gate_up": (hidden, 2 * inner), "down": (inner, hidden)}


def _delta_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    dims, hidden = spec.delta, spec.hidden_size
    assert dims is not None
    return {
        "inputs": (hidden, dims.num_conv_channels + _num_values(dims)),
        "gates": (hidden, 2 * dims.num_value_heads),
        "output": (_num_values(dims), hidden),
        "taps": (dims.conv_width, dims.num_conv_channels),
        "decay_rate": (dims.num_value_heads,),
    }


def _num_values(dims: DeltaDims) -> int:
    return dims.num_value_heads * dims.value_dim


def _block_rows(num_heads: int, num_positions: int) -> int:
    """The largest power of two up to _BLOCK_ROWS whose scores stay within the limit, at least 1."""
    rows = _BLOCK_ROWS
    while rows > 1 and num_heads * rows * num_positions > _MAX_SCORE_ELEMENTS:
        rows //= 2
    return rows
