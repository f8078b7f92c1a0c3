"""Which regions of the memory plan a decoder takes besides its weights: cache, scratch, expanded matrices.

Owns shapes and names; no torch, so that `plan` and the engine's start reserve with the same functions.
"""

from dataclasses import dataclass

from engine.memory.layout import Handle, LayoutBuilder
from engine.ops.attention_layout import num_columns
from engine.spec import ModelSpec
from engine.state.reserve import KvHandles, PlainFormat, reserve_kv

# Fewer rows take other sums in the library, so a shorter batch is filled up with rows that are forgotten.
MIN_BATCH_ROWS = 16
_BLOCK_ROWS = 64
_MAX_SCORE_ELEMENTS = 8 << 20  # 32 MiB: fewer rows at a time where the window is long


@dataclass(frozen=True, slots=True)
class WorkspaceHandles:
    """The workspace's regions, and how many rows one block of attention scores has."""

    residual: Handle
    qkv: Handle
    attended: Handle
    gate_up: Handle
    scores: Handle
    logits: Handle
    block_rows: int


@dataclass(frozen=True, slots=True)
class DecoderHandles:
    """Regions of one decoder besides its packed weights."""

    cache: KvHandles
    workspace: WorkspaceHandles
    expanded: dict[str, Handle]


def reserve_decoder(
    builder: LayoutBuilder,
    spec: ModelSpec,
    kv_format: PlainFormat,
    context_limit: int,
    chunk_tokens: int,
    num_drafts: int = 0,
) -> DecoderHandles:
    """Plan cache, workspace and expanded matrices of a window of context_limit positions."""
    num_positions = num_columns(context_limit, MIN_BATCH_ROWS)  # room for a batch filled up at the window's end
    cache = reserve_kv(builder, spec, kv_format, num_positions)
    workspace = reserve_workspace(builder, spec, max(chunk_tokens, MIN_BATCH_ROWS), num_positions, 1 + num_drafts)
    return DecoderHandles(cache, workspace, reserve_expanded(builder, spec))


def reserve_workspace(
    builder: LayoutBuilder, spec: ModelSpec, chunk_tokens: int, num_positions: int, num_logits: int
) -> WorkspaceHandles:
    """Plan scratch for chunks of chunk_tokens over a timeline of num_positions, and num_logits rows of logits."""
    dims = spec.attention
    block_rows = _block_rows(dims.num_heads, num_positions)
    num_scores = dims.num_heads * block_rows * num_positions
    return WorkspaceHandles(
        residual=builder.reserve("workspace.residual", (chunk_tokens, spec.hidden_size), "fp32"),
        qkv=builder.reserve("workspace.qkv", (chunk_tokens, dims.num_q_rows + 2 * dims.num_kv_rows), "fp32"),
        attended=builder.reserve("workspace.attended", (chunk_tokens, dims.num_output_cols), "fp32"),
        gate_up=builder.reserve("workspace.gate_up", (chunk_tokens, 2 * spec.intermediate_size), "fp32"),
        scores=builder.reserve("workspace.scores", (num_scores,), "fp32"),
        logits=builder.reserve("workspace.logits", (num_logits, spec.vocab_size), "fp32"),
        block_rows=block_rows,
    )


def reserve_expanded(builder: LayoutBuilder, spec: ModelSpec) -> dict[str, Handle]:
    """Plan one region per matrix of the decoder, named after the matrix."""
    dims, hidden, inner = spec.attention, spec.hidden_size, spec.intermediate_size
    shapes = {"head": (hidden, spec.vocab_size)}
    for index in range(spec.num_layers):
        shapes[f"layers.{index}.qkv"] = (hidden, dims.num_q_rows + 2 * dims.num_kv_rows)
        shapes[f"layers.{index}.output"] = (dims.num_output_cols, hidden)
        shapes[f"layers.{index}.gate_up"] = (hidden, 2 * inner)
        shapes[f"layers.{index}.down"] = (inner, hidden)
    return {name: builder.reserve(f"expanded.{name}", shape, "fp32") for name, shape in shapes.items()}


def _block_rows(num_heads: int, num_positions: int) -> int:
    """The largest power of two up to _BLOCK_ROWS whose scores stay within the limit, at least 1."""
    rows = _BLOCK_ROWS
    while rows > 1 and num_heads * rows * num_positions > _MAX_SCORE_ELEMENTS:
        rows //= 2
    return rows
