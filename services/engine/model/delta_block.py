"""One gated delta layer: project, advance the recurrent state, norm and gate, project. Owns their order.

The recurrence and its forms are `ops/gated_delta`'s; which form a pass takes follows from its mode.
"""

from dataclasses import dataclass

from engine.model.expanded import DeltaMatrices
from engine.model.norm import Norm
from engine.model.span import Span
from engine.model.workspace import DeltaRows, Rows
from engine.ops.gated_delta import (
    DeltaInputs,
    DeltaState,
    ReplayRecord,
    advance,
    advance_chunked,
    gated_rmsnorm,
    propose,
)
from engine.spec import DeltaDims


@dataclass(frozen=True, slots=True, eq=False)
class DeltaBlock:
    """Adds the delta rule's output for normalised rows to the residual stream; head_norm's weight is plain."""

    dims: DeltaDims
    state: DeltaState
    record: ReplayRecord
    matrices: DeltaMatrices
    head_norm: Norm

    def run(self, norm: Norm, span: Span) -> None:
        """Compute the span's positions.

        Effects: advances the state, or in mode propose writes the record; adds to the rows' residual; overwrites their
                 delta rows.
        """
        for piece in span.pieces:
            normed, delta = norm(piece.rows.residual), _delta(piece.rows)
            self.matrices.inputs.multiply(normed, delta.inputs)
            self.matrices.gates.multiply(normed, delta.gates)
        self._advance(span)
        for piece in span.pieces:
            self._finish(piece.rows)

    def _advance(self, span: Span) -> None:
        dims, delta = self.dims, _delta(span.rows)
        num_heads = dims.num_value_heads
        inputs = DeltaInputs(
            qkv=delta.inputs[:, : dims.num_conv_channels], a=delta.gates[:, num_heads:], b=delta.gates[:, :num_heads]
        )
        out = delta.heads.view(-1, num_heads, dims.value_dim)
        match span.mode:
            case "chunk":
                advance_chunked(inputs, self.matrices.core, self.state, out)
            case "step":
                advance(inputs, self.matrices.core, self.state, out)
            case "propose":
                propose(inputs, self.matrices.core, self.state, self.record, out)
            case "batch":
                raise AssertionError("rows of a batch have no order on the grid")

    def _finish(self, rows: Rows) -> None:
        dims, delta = self.dims, _delta(rows)
        heads = delta.heads.view(-1, dims.num_value_heads, dims.value_dim)
        z = delta.inputs[:, dims.num_conv_channels :].view(heads.shape)
        gated = gated_rmsnorm(heads, z, self.head_norm.weight, self.head_norm.eps)
        self.matrices.output.add_product(gated.view(delta.heads.shape), rows.residual)


def _delta(rows: Rows) -> DeltaRows:
    assert rows.delta is not None, "the workspace was planned without delta layers"
    return rows.delta
