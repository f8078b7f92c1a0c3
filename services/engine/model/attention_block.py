"""One softmax attention layer: project, normalise, rotate, cache, attend, gate, project. Owns their order.

Which of these a model has is in its AttentionDims. Keys and values are the cache's, and so is the space they are in.
"""

from dataclasses import dataclass

import torch

from engine.model.expanded import AttentionMatrices
from engine.model.norm import Norm
from engine.model.span import Piece, Span
from engine.model.workspace import Workspace
from engine.ops.attention import attention, num_columns
from engine.ops.attention_gate import apply_gate, split_query_gate
from engine.ops.rope import RotaryTables, apply_rope
from engine.spec import AttentionDims
from engine.state.kv_cache import KvCache


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """Adds attention of normalised rows to the residual stream; slot is the layer's place in the cache."""

    dims: AttentionDims
    slot: int
    cache: KvCache
    workspace: Workspace
    matrices: AttentionMatrices
    q_norm: Norm | None
    k_norm: Norm | None

    def run(self, norm: Norm, span: Span) -> None:
        """Compute the span's positions.

        Effects: appends to the cache; adds to the rows' residual; overwrites their qkv and attended.
        """
        for piece in span.pieces:
            self.matrices.qkv.multiply(norm(piece.rows.residual), piece.rows.qkv)
            self._attend(piece)
            self.matrices.output.add_product(piece.rows.attended, piece.rows.residual)

    def _attend(self, piece: Piece) -> None:
        """From projected rows to attended ones."""
        dims, cache = self.dims, self.cache
        num_tokens = piece.rows.qkv.shape[0]
        q, gate, keys, values = self._heads(piece.rows.qkv, piece.tables)
        cache.append(self.slot, piece.start, keys, values)
        view = cache.view(self.slot, num_columns(piece.start, num_tokens))
        attended = piece.rows.attended.view(num_tokens, dims.num_heads, dims.head_dim)
        attention(
            cache.to_code_space(q),
            view.keys,
            view.values,
            attended,
            start=piece.start,
            scores=self.workspace.scores,
            block_rows=self.workspace.block_rows,
        )
        cache.from_code_space(self.slot, attended)
        if gate is not None:
            apply_gate(attended, gate)

    def _heads(
        self, qkv: torch.Tensor, tables: RotaryTables
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Normalised, rotated queries [T, Hq, D], their gates, rotated keys and plain values [T, Hkv, D]."""
        dims = self.dims
        num_tokens = qkv.shape[0]
        q_rows, k_rows, v_rows = torch.split(qkv, [dims.num_q_rows, dims.num_kv_rows, dims.num_kv_rows], dim=1)
        keys = k_rows.view(num_tokens, dims.num_kv_heads, dims.head_dim)
        values = v_rows.view(num_tokens, dims.num_kv_heads, dims.head_dim)
        gate = None
        if dims.gated:
            q, gate = split_query_gate(q_rows, dims.head_dim)
        else:
            q = q_rows.view(num_tokens, dims.num_heads, dims.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, keys = self.q_norm(q), self.k_norm(keys)
        apply_rope(q, tables)
        apply_rope(keys, tables)
        return q, gate, keys, values
