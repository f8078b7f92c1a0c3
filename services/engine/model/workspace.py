"""Scratch of one forward pass, planned for the largest chunk. Owns slicing; what lies in it is the model's.

The residual stream, each product's result and the attention scores are written into these regions, so a forward pass
takes no memory of its own but a few rows of normalised activations.
"""

from dataclasses import dataclass

import torch

from engine.memory.arena import Arena
from engine.model.reserve import WorkspaceHandles


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
