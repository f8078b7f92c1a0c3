"""Keys and values of the live sequence, one flat array per side: no pages, position p of a layer is row p.

Owns how far rows are valid, and what of attention a format asks for: the query's space, the output's way back. Receives
rotated keys and plain values; hands on fp32 views. The arrays are `kv_side`'s.
"""

from dataclasses import dataclass
from typing import Final

import torch

from engine.memory.arena import Arena
from engine.ops.kv_codec import from_code_space, is_rotated, rotate
from engine.spec import KvFormat
from engine.state.kv_side import Expansion, KvSide
from engine.state.reserve import CacheHandles, KvHandles


@dataclass(frozen=True, slots=True, eq=False)
class KvView:
    """What attention reads of one layer; valid until the next view.

    Shapes:  keys, values [Hkv, N, D] fp32, last axis contiguous, in the format's code space.
    """

    keys: torch.Tensor
    values: torch.Tensor


class KvCache:
    """Append, view, commit, truncate; slot counts the cache's layers from 0."""

    def __init__(
        self,
        arena: Arena,
        kv_format: KvFormat,
        handles: CacheHandles,
        expansions: tuple[Expansion, Expansion] | tuple[None, None],
    ) -> None:
        """expansions are of keys and of values, shared with other caches; None for fp32.

        Effects: writes every byte once, so that the system hands out the pages now and not in mid-request.
        """
        self.kv_format: Final[KvFormat] = kv_format
        self._is_rotated = is_rotated(kv_format)
        self._keys = KvSide(arena, kv_format, handles.keys, expansions[0])
        self._values = KvSide(arena, kv_format, handles.values, expansions[1])
        self.num_layers: Final = self._keys.num_layers
        self.num_positions: Final = self._keys.num_positions
        self.num_tokens = 0
        self._num_intact = 0  # rows of one timeline, also behind num_tokens: where restore may go

    def set_centres(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Centre what is stored from now on, in formats that do [La, Hkv, D] fp32; the cache is empty."""
        self._keys.set_centres(keys)
        self._values.set_centres(values)

    def begin(self) -> None:
        """A pass writes rows from num_tokens on: what lay behind them cannot come back."""
        self._num_intact = self.num_tokens

    def append(self, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write one layer's rows from position start on; commit() makes them count.

        Shapes:  keys, values [T, Hkv, D] fp32. Effects: overwrites what was there.
        Raises:  NumericalError when a value to encode is not finite.
        """
        end = start + keys.shape[0]
        assert end <= self.num_positions, f"row {end} of {self.num_positions}"
        self._keys.write(slot, start, keys)
        self._values.write(slot, start, values)

    def view(self, slot: int, num_positions: int) -> KvView:
        """One layer's first num_positions rows, appended ones included.

        Numeric: decoding is exact in every format.
        """
        return KvView(self._keys.read(slot, num_positions), self._values.read(slot, num_positions))

    def to_code_space(self, q: torch.Tensor) -> torch.Tensor:
        """Queries as the keys of view() are to be met with: [T, Hq, D] fp32 in and out."""
        return rotate(q) if self._is_rotated else q

    def from_code_space(self, slot: int, attended: torch.Tensor) -> None:
        """Take attention's output [T, Hq, D] fp32 back to plain values, in place."""
        if not self._is_rotated:
            return
        centre = self._values.centre(slot)
        if centre is not None:
            centre = centre.repeat_interleave(attended.shape[1] // centre.shape[0], dim=0)
        attended.copy_(from_code_space(self.kv_format, attended, centre))

    def commit(self, num_tokens: int) -> None:
        """All layers hold the first num_tokens positions."""
        self.num_tokens = num_tokens
        self._num_intact = num_tokens

    def truncate(self, num_tokens: int) -> None:
        """Forget every position from num_tokens on; restore() may bring them back before the next pass."""
        assert 0 <= num_tokens <= self.num_tokens, f"{num_tokens} of {self.num_tokens}"
        self.num_tokens = num_tokens

    def restore(self, num_tokens: int) -> None:
        """Go back, or forward to rows that were truncated and not overwritten."""
        assert 0 <= num_tokens <= self._num_intact, f"{num_tokens}: the timeline holds {self._num_intact} rows"
        self.num_tokens = num_tokens


def open_caches(arena: Arena, handles: KvHandles) -> tuple[KvCache, KvCache | None]:
    """The decoder's cache and, where it is planned, the MTP head's; both read through the same expansions."""
    expansions: tuple[Expansion, Expansion] | tuple[None, None] = (None, None)
    if handles.expanded_keys is not None and handles.expanded_values is not None:
        expansions = Expansion(arena.tensor(handles.expanded_keys)), Expansion(arena.tensor(handles.expanded_values))
    main = KvCache(arena, handles.kv_format, handles.main, expansions)
    return main, None if handles.mtp is None else KvCache(arena, handles.kv_format, handles.mtp, expansions)


def set_centres(keys: torch.Tensor, values: torch.Tensor, main: KvCache, mtp: KvCache | None) -> None:
    """Give both caches their layers of keys and values [La, Hkv, D], the MTP head's last."""
    main.set_centres(keys[: main.num_layers], values[: main.num_layers])
    if mtp is not None:
        mtp.set_centres(keys[main.num_layers :], values[main.num_layers :])
