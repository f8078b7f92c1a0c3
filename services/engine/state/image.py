"""A copy of everything of the live sequence that cannot be cut: recurrent state, convolution columns, the last hidden.

Owns the copied bytes, in host memory. Keys and values are not in it: they stay where they are, and an image is of use
only while the rows below its position are those it was taken over. Models without recurrent state have empty images.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class HostImage:
    """A StateImage (`checkpoints`): state behind `position` computed positions.

    next_position: the rotary position of the next text token (images make it differ from position).
    Shapes:  recurrent [Ld, Hv, K, V] fp32; conv [Ld, 3, C]; hidden [C] fp32, the last position's behind the final norm,
             which the draft head is fed next. None where the model has no such state.
    """

    position: int
    next_position: int
    recurrent: torch.Tensor | None = None
    conv: torch.Tensor | None = None
    hidden: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(part.nbytes for part in self._parts())

    def is_finite(self) -> bool:
        """Whether every stored value is."""
        return all(bool(torch.isfinite(part).all()) for part in self._parts())

    def _parts(self) -> list[torch.Tensor]:
        return [part for part in (self.recurrent, self.conv, self.hidden) if part is not None]
