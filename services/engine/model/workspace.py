"""Scratch of one forward pass, planned for the largest chunk. Owns slicing; what lies in it is the model's.

The residual stream, each product's result and the attention scores are written into these regions, so a forward pass
takes no memory of its own but a few rows of normalised activations.
"""

from dataclasses import dataclass

import torch

from engine.memory.arena import Arena
from engine.memory.layout import Handle
from engine.model.reserve import WorkspaceHandles


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRows:
    """What a delta layer writes.

    Shapes:  inputs [T, channels + Hv * V], rows q, k, v, then z; gates [T, 2 Hv], b, then a; heads [T, Hv * V]; fp32.
    """

    inputs: torch.Tensor
    gates: torch.Tensor
    heads: torch.Tensor

    def slice(self, first: int, last: int) -> "DeltaRows":
        """Views of rows first .. last - 1."""
        return DeltaRows(self.inputs[first:last], self.gates[first:last], self.heads[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Workspace of T rows; delta is None where the model has no such layer.

    Shapes:  residual [T, C]; qkv [T, Nq + 2 Nkv]; attended [T, Hq * D]; gate_up [T, 2 F]; all fp32.
    """

    residual: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    gate_up: torch.Tensor
    delta: DeltaRows | None

    def slice(self, first: int, last: int) -> "Rows":
        """Views of rows first .. last - 1."""
        return Rows(
            self.residual[first:last],
            self.qkv[first:last],
            self.attended[first:last],
            self.gate_up[first:last],
            None if self.delta is None else self.delta.slice(first, last),
        )


class Workspace:
    """The bound regions; rows(T) hands out the first T rows of each."""

    def __init__(self, arena: Arena, handles: WorkspaceHandles) -> None:
        """Effects: writes every byte once, so that the system hands out the pages now and not in mid-request."""

        def bind(handle: Handle) -> torch.Tensor:
            return arena.tensor(handle).zero_()

        delta = None
        if handles.delta_inputs is not None and handles.delta_gates is not None and handles.delta_heads is not None:
            delta = DeltaRows(bind(handles.delta_inputs), bind(handles.delta_gates), bind(handles.delta_heads))
        self._all = Rows(
            residual=bind(handles.residual),
            qkv=bind(handles.qkv),
            attended=bind(handles.attended),
            gate_up=bind(handles.gate_up),
            delta=delta,
        )
        self._one = self._all.slice(0, 1)
        self.scores = bind(handles.scores)
        self.logits = bind(handles.logits)
        self.block_rows = handles.block_rows

    def rows(self, num_tokens: int) -> Rows:
        """Views of the first num_tokens rows."""
        return self._one if num_tokens == 1 else self._all.slice(0, num_tokens)
