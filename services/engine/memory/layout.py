"""The memory plan: who needs which bytes, decided before any is taken. Owns arithmetic; no torch, no device.

Every component reserves named regions in a LayoutBuilder; plan() places them back to back. A region's span is rounded
up to the alignment of what follows, so spans tile the arena: their sum is total_bytes, with no byte outside a region.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from contracts.errors import SetupError
from engine.byte_text import describe_bytes

DType = Literal["fp32", "fp16", "bf16", "int64", "int32", "int16", "int8", "uint8"]
ALIGNMENT_BYTES = 256
MAX_ALIGNMENT_BYTES = 4096  # what a page gives an arena on the host
MAX_WAYS = 3

_ITEM_BYTES: dict[DType, int] = {
    "fp32": 4, "fp16": 2, "bf16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Handle:
    """Proof of a reservation; the arena gives its tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class Region:
    """A planned span: the tensor takes tensor_bytes from offset on, the span ends at offset + bytes."""

    name: str
    offset: int
    bytes: int
    tensor_bytes: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class WayToFit:
    """A setting that would shrink the plan; `change` is a phrase such as "ENGINE_CONTEXT=4096"."""

    change: str
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Placed regions in order. Offsets are multiples of their alignment if the arena's base is of alignment_bytes."""

    regions: tuple[Region, ...]
    total_bytes: int
    alignment_bytes: int

    def fits(self, budget_bytes: int) -> bool:
        """Whether the arena is at most budget_bytes."""
        return self.total_bytes <= budget_bytes

    def require_fit(self, budget_bytes: int, ways: Sequence[WayToFit] = ()) -> None:
        """Refuse a plan over budget before anything is allocated.

        ways are candidates in any order; the message names the up to three cheapest that close the deficit alone, or,
        when none does, the one that saves most.
        Raises: SetupError with the deficit in bytes.
        """
        deficit = self.total_bytes - budget_bytes
        if deficit <= 0:
            return
        message = (
            f"the memory plan needs {describe_bytes(self.total_bytes)}, the budget is {describe_bytes(budget_bytes)}: "
            f"{describe_bytes(deficit)} short"
        )
        raise SetupError(message + _describe_ways(ways, deficit))


class LayoutBuilder:
    """Collects reservations; plan() may be called at any time and does not change the builder."""

    def __init__(self) -> None:
        self._wanted: dict[str, _Reservation] = {}

    def reserve(self, name: str, shape: tuple[int, ...], dtype: DType, *, alignment: int = ALIGNMENT_BYTES) -> Handle:
        """Ask for a region; names are unique, every axis is at least 1, alignment is a power of two in 256 .. 4096."""
        assert name not in self._wanted, f"region {name} reserved twice"
        assert shape and all(axis >= 1 for axis in shape), f"region {name} has shape {shape}"
        assert ALIGNMENT_BYTES <= alignment <= MAX_ALIGNMENT_BYTES, f"region {name}: alignment {alignment}"
        assert alignment & (alignment - 1) == 0, f"region {name}: alignment {alignment}"
        self._wanted[name] = _Reservation(shape, dtype, alignment)
        return Handle(name)

    def plan(self) -> MemoryPlan:
        """Place every region in the order of reservation."""
        wanted = list(self._wanted.items())
        regions: list[Region] = []
        offset = 0
        for index, (name, want) in enumerate(wanted):
            following = wanted[index + 1][1].alignment if index + 1 < len(wanted) else ALIGNMENT_BYTES
            end = _round_up(offset + want.tensor_bytes, following)
            regions.append(Region(name, offset, end - offset, want.tensor_bytes, want.shape, want.dtype))
            offset = end
        largest = max((want.alignment for _, want in wanted), default=ALIGNMENT_BYTES)
        return MemoryPlan(tuple(regions), offset, largest)


@dataclass(frozen=True, slots=True)
class _Reservation:
    shape: tuple[int, ...]
    dtype: DType
    alignment: int

    @property
    def tensor_bytes(self) -> int:
        return prod(self.shape) * _ITEM_BYTES[self.dtype]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _describe_ways(ways: Sequence[WayToFit], deficit: int) -> str:
    enough = sorted((way for way in ways if way.saved_bytes >= deficit), key=lambda way: way.saved_bytes)
    if enough:
        listed = "; ".join(f"{way.change} (saves {way.saved_bytes} bytes)" for way in enough[:MAX_WAYS])
        return f". To fit: {listed}"
    helpful = [way for way in ways if way.saved_bytes > 0]
    if not helpful:
        return ""
    best = max(helpful, key=lambda way: way.saved_bytes)
    return f". No single change is enough; the largest is {best.change} (saves {best.saved_bytes} bytes)"
