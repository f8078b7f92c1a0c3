"""Checkpoints of the live timeline: state images in host memory, where a session can go back to.

Owns which images are kept and which one serves a position. Receives images with the modes they were computed in; it
takes no image itself, knows no ids and no keys and values. How many it may hold is decided at start from bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

Mode = Literal["chunk", "tail", "step"]
"""How a position was computed: in a whole 64-block of the grid, in a part of one, as a generated token."""

INTERVAL_TOKENS = 4096


class StateImage(Protocol):
    """A copy of everything that rewind cannot undo (recurrent states, convolution columns, pending MTP input).

    Keys and values are not in it: their rows stay in place as long as nobody computes their positions again.
    """

    @property
    def position(self) -> int:
        """Positions the state stands for."""

    @property
    def num_bytes(self) -> int:
        """Host bytes it takes; 0 where keys and values are all there is."""

    def is_finite(self) -> bool:
        """Whether every stored value is."""


@dataclass(frozen=True, slots=True)
class ModeSpan:
    """Positions start .. end - 1 were computed in one mode."""

    start: int
    end: int
    mode: Mode


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A state image and the modes of every position before it."""

    image: StateImage
    modes: tuple[ModeSpan, ...]

    @property
    def position(self) -> int:
        """Positions the state stands for."""
        return self.image.position


class CheckpointRing:
    """Up to capacity checkpoints of one timeline, in order of position.

    When full, the one least missed makes room: the tokens that would have to be computed again without it, over its
    distance from the newest. Going back far is rarer than going back a little, so what stays is dense near the end and
    thins out towards the start.
    """

    def __init__(self, capacity: int) -> None:
        """capacity 0 keeps nothing."""
        self.capacity: Final = capacity
        self._checkpoints: list[Checkpoint] = []

    @property
    def positions(self) -> list[int]:
        """Where the checkpoints are, ascending."""
        return [checkpoint.position for checkpoint in self._checkpoints]

    @property
    def last_position(self) -> int:
        """Where the last checkpoint is, 0 without one."""
        return self._checkpoints[-1].position if self._checkpoints else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all images."""
        return sum(checkpoint.image.num_bytes for checkpoint in self._checkpoints)

    def make_room(self, position: int) -> bool:
        """Before an image is taken at a position: whether it is wanted; drops one if the ring is full.

        Only the timeline's end is: whoever stands before the last checkpoint went back to one and computed nothing.
        """
        if self.capacity == 0 or position <= self.last_position:
            return False
        if len(self._checkpoints) == self.capacity:
            del self._checkpoints[self._least_missed(position)]
        return True

    def store(self, checkpoint: Checkpoint) -> bool:
        """Keep a checkpoint behind make_room; returns False for a state that is not finite, which is never kept."""
        if not checkpoint.image.is_finite():
            return False
        assert len(self._checkpoints) < self.capacity, "make_room was not asked"
        self._checkpoints.append(checkpoint)
        return True

    def best(self, position: int) -> Checkpoint | None:
        """The last checkpoint at or before a position."""
        index = bisect_right(self._checkpoints, position, key=_position)
        return self._checkpoints[index - 1] if index else None

    def forget_beyond(self, position: int) -> None:
        """Drop every checkpoint behind a position, because the timeline goes on differently from there."""
        del self._checkpoints[bisect_right(self._checkpoints, position, key=_position) :]

    def clear(self) -> None:
        """Drop everything."""
        self._checkpoints.clear()

    def _least_missed(self, newest: int) -> int:
        positions = self.positions
        loss = [
            (position - before) / (newest - position + INTERVAL_TOKENS)
            for before, position in zip([0, *positions], positions, strict=False)
        ]
        return loss.index(min(loss))


def append_mode(modes: list[ModeSpan], start: int, end: int, mode: Mode) -> None:
    """Add positions start .. end - 1 behind the modes before them; equal neighbours become one span."""
    assert start < end and start == (modes[-1].end if modes else 0), f"modes end before {start}"
    if modes and modes[-1].mode == mode:
        start = modes.pop().start
    modes.append(ModeSpan(start, end, mode))


def cut_modes(modes: Sequence[ModeSpan], num_tokens: int) -> list[ModeSpan]:
    """The modes of the first num_tokens positions."""
    kept = [span for span in modes if span.start < num_tokens]
    if kept and kept[-1].end > num_tokens:
        kept[-1] = ModeSpan(kept[-1].start, num_tokens, kept[-1].mode)
    return kept


def _position(checkpoint: Checkpoint) -> int:
    return checkpoint.position
