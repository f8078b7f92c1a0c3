"""Numbers as they are: F32, F16, BF16. Owns nothing but the widening."""

from typing import Final

import numpy as np

from contracts.errors import SetupError
from engine.weights.forms import DenseDType
from engine.weights.readers.row_reader import StoredArray
from engine.weights.tensor_source import FloatRows

_PRECISIONS: Final[dict[str, DenseDType]] = {"F32": "fp32", "F16": "fp32", "BF16": "bf16"}


class PlainReader:
    """See RowReader; also reads vectors."""

    def __init__(self, array: StoredArray, shape: tuple[int, ...]) -> None:
        """shape may differ from the stored one by axes of length one.

        Raises: SetupError for a dtype that holds no numbers.
        """
        if array.dtype not in _PRECISIONS:
            supported = ", ".join(_PRECISIONS)
            raise SetupError(f"tensor {array.name} is stored as {array.dtype}; supported: {supported}")
        self._array = array
        self.shape: Final = shape
        self.kind: Final = array.dtype
        self.precision: Final[DenseDType | None] = _PRECISIONS[array.dtype]

    def read(self, start: int, stop: int) -> FloatRows:
        """See RowReader."""
        row_bytes = len(self._array.raw) // self.shape[0]
        raw = self._array.raw[start * row_bytes : stop * row_bytes]
        rows = StoredArray(self._array.name, self._array.dtype, (stop - start, *self.shape[1:]), raw)
        values = rows.floats()
        assert values.dtype == np.float32
        return FloatRows(values)
