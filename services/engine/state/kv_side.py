"""Keys, or values, of several attention layers in the cache's format. Owns the arrays and the way in and out of them.

Receives fp32 rows; hands on the fp32 rows that the codes stand for, in code space (`ops/kv_codec`). How far rows count
is the cache's.
"""

from typing import Final

import torch

from contracts.errors import NumericalError
from engine.memory.arena import Arena
from engine.ops.kv_codec import Encoded, decode, encode, to_code_space
from engine.spec import KvFormat
from engine.state.reserve import CodeHandles

_ROWS_AT_ONCE = 4096  # bounds the temporaries of decoding


class Expansion:
    """One layer's rows as fp32, which attention reads; all layers of a side take turns.

    Shapes:  rows [N, Hkv, D] fp32.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        """Effects: writes every byte once, so that the system hands out the pages now and not in mid-request."""
        self.rows: Final = rows.zero_()
        self._owner: tuple[object, int] | None = None
        self.num_rows = 0  # how many of the owner's rows are there

    def claim(self, side: object, slot: int) -> None:
        """The rows are this layer's from now on."""
        if not self.belongs_to(side, slot):
            self._owner, self.num_rows = (side, slot), 0

    def belongs_to(self, side: object, slot: int) -> bool:
        """Whether the rows are this layer's."""
        return self._owner is not None and self._owner[0] is side and self._owner[1] == slot


class KvSide:
    """One of the two sides; slot counts attention layers from 0."""

    def __init__(self, arena: Arena, kv_format: KvFormat, handles: CodeHandles, expansion: Expansion | None) -> None:
        """expansion is None for fp32 codes. Effects: writes every byte once; centres are zero."""
        self._kv_format = kv_format
        self._codes = arena.tensor(handles.codes).zero_()  # [La, N, Hkv, columns]
        self._scales = None if handles.scales is None else arena.tensor(handles.scales).zero_()  # [La, Hkv, G, N]
        self._expansion = expansion
        self._centres = None if handles.centres is None else arena.tensor(handles.centres).zero_()  # [La, Hkv, D]
        self.num_layers: Final[int] = self._codes.shape[0]
        self.num_positions: Final[int] = self._codes.shape[1]

    def set_centres(self, centres: torch.Tensor) -> None:
        """What is subtracted before encoding [La, Hkv, D] fp32; without effect where the format does not centre."""
        if self._centres is not None:
            self._centres.copy_(centres)

    def centre(self, slot: int) -> torch.Tensor | None:
        """The layer's centring vectors [Hkv, D]; None where the format does not centre."""
        return None if self._centres is None else self._centres[slot]

    def write(self, slot: int, start: int, rows: torch.Tensor) -> None:
        """Store rows [T, Hkv, D] fp32 from position start on.

        Raises: NumericalError when a value to encode is not finite.
        """
        end = start + rows.shape[0]
        expansion = self._expansion
        if expansion is not None and expansion.belongs_to(self, slot):
            expansion.num_rows = min(expansion.num_rows, start)
        if self._scales is None:
            self._codes[slot, start:end].copy_(rows)
            return
        try:
            encoded = encode(self._kv_format, to_code_space(self._kv_format, rows, self.centre(slot)))
        except FloatingPointError as error:
            raise NumericalError(f"keys or values at positions {start} .. {end - 1}: {error}") from error
        assert encoded.scales is not None
        self._codes[slot, start:end].copy_(encoded.codes)
        self._scales[slot, :, :, start:end].copy_(encoded.scales)

    def read(self, slot: int, num_positions: int) -> torch.Tensor:
        """The layer's first rows in code space [Hkv, N, D] fp32, last axis contiguous; valid until the next read."""
        expansion = self._expansion
        if expansion is None:
            return self._codes[slot, :num_positions].transpose(0, 1)
        expansion.claim(self, slot)
        while expansion.num_rows < num_positions:
            start, end = expansion.num_rows, min(num_positions, expansion.num_rows + _ROWS_AT_ONCE)
            self._decode(slot, start, end, expansion.rows[start:end])
            expansion.num_rows = end
        return expansion.rows[:num_positions].transpose(0, 1)

    def _decode(self, slot: int, start: int, end: int, out: torch.Tensor) -> None:
        codes = self._codes[slot, start:end]
        if self._scales is None:
            out.copy_(codes)
        else:
            out.copy_(decode(Encoded(codes, self._scales[slot, :, :, start:end])))
