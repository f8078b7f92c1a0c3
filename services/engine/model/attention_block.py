"""One softmax attention layer: project, rotate, cache, attend, project. Owns their order, no weight and no cache."""

from dataclasses import dataclass

import torch

from engine.model.expanded import LayerMatrices
from engine.model.workspace import Rows, Workspace
from engine.ops.attention import attention, num_columns
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

    def run(self, normed: torch.Tensor, rows: Rows, matrices: LayerMatrices, tables: RotaryTables, start: int) -> None:
        """Compute positions start .. start + T - 1.

        Shapes:  normed [T, C] fp32. Effects: appends to the cache; adds to rows.residual; overwrites rows.qkv and
                 rows.attended.
        """
        dims = self.dims
        num_tokens = normed.shape[0]
        num_qk = dims.num_heads + dims.num_kv_heads
        matrices.qkv.multiply(normed, rows.qkv)
        heads = rows.qkv.view(num_tokens, num_qk + dims.num_kv_heads, dims.head_dim)
        apply_rope(heads[:, :num_qk], tables)
        self.cache.append(self.slot, start, heads[:, dims.num_heads : num_qk], heads[:, num_qk:])
        view = self.cache.view(self.slot, num_columns(start, num_tokens))
        attention(
            heads[:, : dims.num_heads],
            view.keys,
            view.values,
            rows.attended.view(num_tokens, dims.num_heads, dims.head_dim),
            start=start,
            scores=self.workspace.scores,
            block_rows=self.workspace.block_rows,
        )
        matrices.output.add_product(rows.attended, rows.residual)
