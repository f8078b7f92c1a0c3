"""What every reader of a checkpoint offers: tensors by canonical name, row by row, as numbers or as stored codes.

Owns the protocol and its values. A source translates names, undoes its format's row orders and conventions, and knows
how the file spells a tensor; what the numbers are for is `schema`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.spec import ModelSpec
from engine.weights.forms import DenseDType, PackedForm


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a source. spelling is its name in the file, kind how it is stored there.

    precision: the dtype that holds its numbers without loss, None when the file has codes. packed: the form whose codes
    and scales the source can hand over as they are, None when it cannot.
    """

    spelling: str
    shape: tuple[int, ...]
    kind: str
    num_bytes: int
    precision: DenseDType | None
    packed: PackedForm | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FloatRows:
    """Rows as numbers.

    Shapes:  values [N, K] fp32; scale_hints [N, K / 64] fp16: steps that the numbers are multiples of, if known.
    """

    values: NDArray[np.float32]
    scale_hints: NDArray[np.float16] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CodeRows:
    """Rows as unsigned codes with a scale, and optionally a minimum, per group.

    Shapes:  codes [N, K] uint8; scales, minima [N, K / group] fp16.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float16]
    minima: NDArray[np.float16] | None


class TensorSource(Protocol):
    """A checkpoint. Reading from several threads is safe."""

    @property
    def path(self) -> Path:
        """The file or folder, for messages."""
        ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Canonical name to tensor; what the source knows and sets aside (a vision tower) is not among them."""
        ...

    @property
    def unknown(self) -> Sequence[str]:
        """Names in the file that the source cannot translate."""
        ...

    def spell(self, name: str) -> str:
        """How the file would spell a canonical name."""
        ...

    def check_spec(self, spec: ModelSpec) -> None:
        """Raises: SetupError when the file's own description differs from the spec."""
        ...

    def read_vector(self, name: str) -> NDArray[np.float32]:
        """A whole small tensor, in its canonical shape."""
        ...

    def read_floats(self, name: str, start: int, stop: int) -> FloatRows:
        """Rows start .. stop - 1 of a matrix as numbers."""
        ...

    def read_codes(self, name: str, start: int, stop: int) -> CodeRows:
        """Rows of a tensor whose `packed` is a form, as stored."""
        ...

    def release(self) -> None:
        """Let go of file pages that were read, so that memory does not grow with the file."""
        ...
