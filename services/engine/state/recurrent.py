"""Recurrent state of the live sequence: one image per delta layer, written in place, and the record of an open round.

Owns the arrays and their copies. A round's columns are proposed from a state that stays as it was; commit folds those
that are kept into it. The mathematics is `ops/gated_delta`'s.
"""

from dataclasses import fields
from typing import Final

import torch

from engine.memory.arena import Arena
from engine.ops.gated_delta import DeltaState, ReplayRecord, commit
from engine.state.reserve import DeltaHandles, ReplayHandles


class DeltaStates:
    """State of all delta layers; index counts them from 0."""

    def __init__(self, arena: Arena, handles: DeltaHandles, replay_handles: ReplayHandles) -> None:
        """Effects: zeroes every byte, which is the state of an empty sequence."""
        self._recurrent = arena.tensor(handles.recurrent).zero_()  # [Ld, Hv, K, V]
        self._conv = arena.tensor(handles.conv).zero_()  # [Ld, 3, C]
        replay = {
            field.name: arena.tensor(getattr(replay_handles, field.name)).zero_() for field in fields(replay_handles)
        }
        num_layers = self._recurrent.shape[0]
        self.layers: Final = tuple(DeltaState(self._recurrent[i], self._conv[i]) for i in range(num_layers))
        self.records: Final = tuple(
            ReplayRecord(**{name: tensor[i] for name, tensor in replay.items()}) for i in range(num_layers)
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of one copy."""
        return self._recurrent.nbytes + self._conv.nbytes

    def commit(self, num_kept: int) -> None:
        """Fold the first num_kept proposed columns into every layer's state."""
        for state, record in zip(self.layers, self.records, strict=True):
            commit(record, num_kept, state)

    def clear(self) -> None:
        """The state of an empty sequence."""
        self._recurrent.zero_()
        self._conv.zero_()

    def copy_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies in host memory: recurrent [Ld, Hv, K, V] and conv [Ld, 3, C]."""
        return self._recurrent.to("cpu", copy=True), self._conv.to("cpu", copy=True)

    def copy_in(self, recurrent: torch.Tensor, conv: torch.Tensor) -> None:
        """The inverse of copy_out."""
        self._recurrent.copy_(recurrent)
        self._conv.copy_(conv)
