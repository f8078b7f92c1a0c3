"""FP8 weights with one scale per block of 128 x 128. Owns this format.

Formula: W[n, k] = e4m3(weight[n, k]) * weight_scale_inv[n // 128, k // 128]; the name says inverse, but it multiplies.
Source:  the public definition of block-scaled FP8 checkpoints (`weight_block_size` in config.json); E4M3 without
         infinities: sign, 4 exponent bits with bias 7, 3 mantissa bits, all ones is NaN.
"""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.weights.forms import DenseDType
from engine.weights.readers.row_reader import StoredArray, require_matrix
from engine.weights.tensor_source import FloatRows

BLOCK: Final = 128


class Fp8BlockReader:
    """See RowReader."""

    kind: Final = "F8_E4M3, scaled by blocks"
    precision: Final[DenseDType | None] = None

    def __init__(self, weight: StoredArray, scale: StoredArray) -> None:
        """Raises: SetupError when dtype or shapes do not go together."""
        num_rows, num_cols = require_matrix(weight)
        if weight.dtype != "F8_E4M3":
            raise SetupError(f"tensor {weight.name} is stored as {weight.dtype}, but {scale.name} is there")
        scale.require_shape((-(-num_rows // BLOCK), -(-num_cols // BLOCK)))
        self.shape: Final[tuple[int, ...]] = (num_rows, num_cols)
        self._codes = weight.raw.reshape(num_rows, num_cols)
        self._scales = scale.floats()

    def read(self, start: int, stop: int) -> FloatRows:
        """See RowReader."""
        values = _e4m3_values()[self._codes[start:stop]]
        scales = self._scales[np.arange(start, stop) // BLOCK]  # [rows, blocks of columns]
        values *= np.repeat(scales, BLOCK, axis=1)[:, : self.shape[1]]
        return FloatRows(values)


@cache
def _e4m3_values() -> NDArray[np.float32]:
    """The number of each byte."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(code & 127) == 127] = np.nan
    return np.where(code >= 128, -magnitude, magnitude).astype(np.float32)
