"""Keys and values of the live sequence, one flat array per side: no pages, position p of a layer is row p.

Owns the arrays, how far they are valid and the fp32 form that attention reads. Receives rotated keys and plain values;
hands on views. Formats fp32 and bf16 live here; a packed format replaces this class behind the same three verbs.
"""

from dataclasses import dataclass
from typing import Final

import torch

from engine.memory.arena import Arena
from engine.state.reserve import KvHandles


@dataclass(frozen=True, slots=True, eq=False)
class KvView:
    """What attention reads of one layer; valid until the next view.

    Shapes:  keys, values [Hkv, N, D] fp32, last axis contiguous.
    """

    keys: torch.Tensor
    values: torch.Tensor


class KvCache:
    """Append, view, truncate; slot counts attention layers from 0."""

    def __init__(self, arena: Arena, handles: KvHandles) -> None:
        """Effects: writes every byte once, so that the system hands out the pages now and not in mid-request."""
        self._keys = arena.tensor(handles.keys)  # [La, N, Hkv, D]
        self._values = arena.tensor(handles.values)  # [La, N, Hkv, D]
        self._expanded: tuple[torch.Tensor, torch.Tensor] | None = None
        if handles.expanded_keys is not None and handles.expanded_values is not None:
            self._expanded = (arena.tensor(handles.expanded_keys), arena.tensor(handles.expanded_values))
        for array in (self._keys, self._values, *(self._expanded or ())):
            array.zero_()
        self.num_positions: Final = self._keys.shape[1]
        self.num_tokens = 0

    def append(self, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write one layer's rows from position start on; commit() makes them count.

        Shapes:  keys, values [T, Hkv, D] fp32. Effects: overwrites what was there.
        """
        end = start + keys.shape[0]
        assert end <= self.num_positions, f"row {end} of {self.num_positions}"
        self._keys[slot, start:end].copy_(keys)
        self._values[slot, start:end].copy_(values)

    def view(self, slot: int, num_positions: int) -> KvView:
        """One layer's first num_positions rows, appended ones included.

        Numeric: bf16 to fp32 is exact.
        """
        keys, values = self._keys[slot, :num_positions], self._values[slot, :num_positions]
        if self._expanded is not None:
            keys = self._expanded[0][:num_positions].copy_(keys)
            values = self._expanded[1][:num_positions].copy_(values)
        return KvView(keys.transpose(0, 1), values.transpose(0, 1))

    def commit(self, num_tokens: int) -> None:
        """All layers hold the first num_tokens positions."""
        self.num_tokens = num_tokens

    def truncate(self, num_tokens: int) -> None:
        """Forget every position from num_tokens on."""
        assert num_tokens <= self.num_tokens, f"{num_tokens} of {self.num_tokens}"
        self.num_tokens = num_tokens
