"""Scratch of one forward pass, planned for the largest chunk. Owns sizes and slicing; what lies in it is the model's.

The residual stream, each product's result and the attention scores are written into these regions, so a forward pass
takes no memory of its own but a few rows of normalised activations.
"""

from dataclasses import dataclass

import torch

from engine.memory.arena import Arena
from engine.memory.layout import Handle, LayoutBuilder
from engine.spec import ModelSpec

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


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Workspace of T rows.

    Shapes:  residual [T, C]; qkv [T, Nq + 2 Nkv]; attended [T, Hq * D]; gate_up [T, 2 F]; all fp32.
    """

    residual: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    gate_up: torch.Tensor


class Workspace:
    """The bound regions; rows(T) hands out the first T rows of each."""

    def __init__(self, arena: Arena, handles: WorkspaceHandles) -> None:
        """Effects: writes every byte once, so that the system hands out the pages now and not in mid-request."""
        self._all = Rows(
            residual=arena.tensor(handles.residual).zero_(),
            qkv=arena.tensor(handles.qkv).zero_(),
            attended=arena.tensor(handles.attended).zero_(),
            gate_up=arena.tensor(handles.gate_up).zero_(),
        )
        self._one = self._slice(1)
        self.scores = arena.tensor(handles.scores).zero_()
        self.logits = arena.tensor(handles.logits).zero_()
        self.block_rows = handles.block_rows

    def rows(self, num_tokens: int) -> Rows:
        """Views of the first num_tokens rows."""
        return self._one if num_tokens == 1 else self._slice(num_tokens)

    def _slice(self, num_tokens: int) -> Rows:
        whole = self._all
        return Rows(
            whole.residual[:num_tokens],
            whole.qkv[:num_tokens],
            whole.attended[:num_tokens],
            whole.gate_up[:num_tokens],
        )


def reserve_workspace(
    builder: LayoutBuilder, spec: ModelSpec, chunk_tokens: int, num_positions: int
) -> WorkspaceHandles:
    """Plan scratch for chunks of chunk_tokens over a timeline of num_positions."""
    dims = spec.attention
    block_rows = _block_rows(dims.num_heads, num_positions)
    num_scores = dims.num_heads * block_rows * num_positions
    return WorkspaceHandles(
        residual=builder.reserve("workspace.residual", (chunk_tokens, spec.hidden_size), "fp32"),
        qkv=builder.reserve("workspace.qkv", (chunk_tokens, dims.num_q_rows + 2 * dims.num_kv_rows), "fp32"),
        attended=builder.reserve("workspace.attended", (chunk_tokens, dims.num_output_cols), "fp32"),
        gate_up=builder.reserve("workspace.gate_up", (chunk_tokens, 2 * spec.intermediate_size), "fp32"),
        scores=builder.reserve("workspace.scores", (num_scores,), "fp32"),
        logits=builder.reserve("workspace.logits", (1, spec.vocab_size), "fp32"),
        block_rows=block_rows,
    )


def _block_rows(num_heads: int, num_positions: int) -> int:
    """The largest power of two up to _BLOCK_ROWS whose scores stay within the limit, at least 1."""
    rows = _BLOCK_ROWS
    while rows > 1 and num_heads * rows * num_positions > _MAX_SCORE_ELEMENTS:
        rows //= 2
    return rows
