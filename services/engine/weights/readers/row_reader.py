"""What a reader of one stored matrix is, and the stored tensors it is made of. Owns the protocol and shape checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.weights.blocks import widen_bf16
from engine.weights.forms import DenseDType
from engine.weights.tensor_source import FloatRows


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """One tensor of the file: its bytes, and how to read them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def floats(self) -> NDArray[np.float32]:
        """Every number as fp32, of the tensor's shape; a copy.

        Raises: SetupError for a dtype that holds no numbers.
        """
        match self.dtype:
            case "BF16":
                values = widen_bf16(self.raw.view(np.uint16))
            case "F16":
                values = self.raw.view(np.float16).astype(np.float32)
            case "F32":
                values = self.raw.view(np.float32).copy()
            case _:
                raise SetupError(f"tensor {self.name} is stored as {self.dtype}, expected F32, F16 or BF16")
        return values.reshape(self.shape)

    def words(self) -> NDArray[np.uint32]:
        """32-bit words, of the tensor's shape; a view.

        Raises: SetupError for another dtype.
        """
        if self.dtype != "I32":
            raise SetupError(f"tensor {self.name} is stored as {self.dtype}, expected I32")
        return self.raw.view(np.uint32).reshape(self.shape)

    def require_shape(self, expected: tuple[int, ...]) -> None:
        """Raises: SetupError naming the tensor and both shapes."""
        if self.shape != expected:
            raise SetupError(f"tensor {self.name} is {list(self.shape)}, expected {list(expected)}")


class RowReader(Protocol):
    """One matrix. Reading from several threads is safe."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K], whatever the file's orientation; other shapes for tensors that are no matrix."""
        ...

    @property
    def kind(self) -> str:
        """How the matrix is stored, for messages."""
        ...

    @property
    def precision(self) -> DenseDType | None:
        """The dtype that holds the numbers without loss, None for codes."""
        ...

    def read(self, start: int, stop: int) -> FloatRows:
        """Rows start .. stop - 1."""
        ...


def require_matrix(array: StoredArray) -> tuple[int, int]:
    """The two axes of a matrix.

    Raises: SetupError for another number of axes.
    """
    if len(array.shape) != 2:
        raise SetupError(f"tensor {array.name} is {list(array.shape)}, expected a matrix")
    return array.shape[0], array.shape[1]


def take(parts: Mapping[str, StoredArray], module: str, *suffixes: str) -> list[StoredArray]:
    """The tensors of a module that a kind needs.

    Raises: SetupError naming the first that is missing.
    """
    for suffix in suffixes:
        if suffix not in parts:
            raise SetupError(f"tensor {module}.{suffix} is missing beside {module}.{next(iter(parts))}")
    return [parts[suffix] for suffix in suffixes]
