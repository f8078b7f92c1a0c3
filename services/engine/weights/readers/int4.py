"""Four-bit codes in 32-bit words with a scale per group of columns: GPTQ, AWQ and compressed-tensors. Owns the formats.

Formula: W[n, k] = scale[g, n] * (q[n, k] - zero[g, n]), g = k // group, or the k-th entry of a stored group index.
GPTQ     qweight [K / 8, N]: nibble i of word r is column 8 r + i. qzeros [G, N / 8]: nibble i of word c is row 8 c + i,
         stored minus one in checkpoint_format gptq, as it is in gptq_v2. scales [G, N]. g_idx [K], optional.
AWQ      qweight [K, N / 8] and qzeros [G, N / 8]: nibble i of word c is row 8 c + (0, 2, 4, 6, 1, 3, 5, 7)[i].
         scales [G, N]. Version gemm.
compressed-tensors, format pack-quantized
         weight_packed [N, K / 8]: nibble i of word c is column 8 c + i, stored plus 8. weight_scale [N, G].
         weight_zero_point [N / 8, G], optional: nibble i of word r is row 8 r + i, stored plus 8.
         weight_g_idx [K], optional. weight_shape holds [N, K].
Source:  the formats' public definitions (their reference packers).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.weights.forms import DenseDType
from engine.weights.quantize import GROUP_COLUMNS
from engine.weights.readers.row_reader import StoredArray, require_matrix, take
from engine.weights.tensor_source import FloatRows

_FIELDS = 8
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_MIDDLE = 8
GptqFormat = Literal["gptq", "gptq_v2"]


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Scales and zeros by group and row, and which group a column belongs to.

    Shapes:  scales, zeros [G, N] fp32; column_groups [K], None when column k belongs to k // group_size.
    """

    scales: NDArray[np.float32]
    zeros: NDArray[np.float32]
    group_size: int
    column_groups: NDArray[np.intp] | None

    def apply(self, codes: NDArray[np.uint8], start: int, stop: int) -> FloatRows:
        """Codes [rows, K] to numbers, with the stored scale as hint where our groups lie within theirs."""
        scales, zeros = self.scales[:, start:stop].T, self.zeros[:, start:stop].T  # [rows, G]
        values = codes.astype(np.float32)
        if self.column_groups is not None:
            values -= zeros[:, self.column_groups]
            values *= scales[:, self.column_groups]
            return FloatRows(values)
        num_cols = codes.shape[1]
        values -= np.repeat(zeros, self.group_size, axis=1)[:, :num_cols]
        values *= np.repeat(scales, self.group_size, axis=1)[:, :num_cols]
        if self.group_size % GROUP_COLUMNS:
            return FloatRows(values)
        hints = np.repeat(scales, self.group_size // GROUP_COLUMNS, axis=1)[:, : -(-num_cols // GROUP_COLUMNS)]
        with np.errstate(over="ignore"):
            return FloatRows(values, hints.astype(np.float16))


class GptqReader:
    """See RowReader."""

    kind: Final = "GPTQ int4"
    precision: Final[DenseDType | None] = None

    def __init__(self, module: str, parts: Mapping[str, StoredArray], checkpoint_format: GptqFormat) -> None:
        """Raises: SetupError when a tensor is missing or does not go with the others."""
        weight, zeros, scale = take(parts, module, "qweight", "qzeros", "scales")
        words, num_rows = require_matrix(weight)
        num_cols, num_groups = words * _FIELDS, require_matrix(scale)[0]
        scale.require_shape((num_groups, num_rows))
        zeros.require_shape((num_groups, num_rows // _FIELDS))
        self.shape: Final[tuple[int, ...]] = (num_rows, num_cols)
        self._words = weight.words()
        unpacked = _last_axis(zeros.words()).astype(np.float32)  # [G, N]
        if checkpoint_format == "gptq":
            if unpacked.max(initial=0) > _FIELDS * 2 - 2:
                raise SetupError(f"tensor {zeros.name} has a zero point 16, which checkpoint_format gptq cannot mean")
            unpacked += 1
        group_size = _group_size(num_cols, num_groups, scale)
        self._grid = _Grid(
            scale.floats(), unpacked, group_size, _column_groups(parts.get("g_idx"), num_cols, group_size)
        )

    def read(self, start: int, stop: int) -> FloatRows:
        """See RowReader."""
        words = np.ascontiguousarray(self._words[:, start:stop].T)  # [rows, K / 8]
        return self._grid.apply(_last_axis(words), start, stop)


class AwqReader:
    """See RowReader. Rows are read in whole words of eight."""

    kind: Final = "AWQ int4"
    precision: Final[DenseDType | None] = None

    def __init__(self, module: str, parts: Mapping[str, StoredArray]) -> None:
        """Raises: SetupError when a tensor is missing or does not go with the others."""
        weight, zeros, scale = take(parts, module, "qweight", "qzeros", "scales")
        num_cols, words = require_matrix(weight)
        num_rows, num_groups = words * _FIELDS, require_matrix(scale)[0]
        scale.require_shape((num_groups, num_rows))
        zeros.require_shape((num_groups, words))
        self.shape: Final[tuple[int, ...]] = (num_rows, num_cols)
        self._words = weight.words()
        unpacked = _last_axis(zeros.words(), _AWQ_ORDER).astype(np.float32)
        self._grid = _Grid(scale.floats(), unpacked, _group_size(num_cols, num_groups, scale), None)

    def read(self, start: int, stop: int) -> FloatRows:
        """See RowReader."""
        first, last = start // _FIELDS, -(-stop // _FIELDS)
        codes = _last_axis(np.ascontiguousarray(self._words[:, first:last]), _AWQ_ORDER)  # [K, rows and some more]
        rows = codes[:, start - first * _FIELDS : stop - first * _FIELDS].T
        return self._grid.apply(np.ascontiguousarray(rows), start, stop)


class PackQuantizedReader:
    """See RowReader."""

    kind: Final = "compressed-tensors int4"
    precision: Final[DenseDType | None] = None

    def __init__(self, module: str, parts: Mapping[str, StoredArray]) -> None:
        """Raises: SetupError when a tensor is missing or does not go with the others."""
        weight, scale, shape = take(parts, module, "weight_packed", "weight_scale", "weight_shape")
        if shape.dtype != "I64" or shape.shape != (2,):
            raise SetupError(f"tensor {shape.name} is {list(shape.shape)} {shape.dtype}, expected two I64")
        num_rows, num_cols = (int(axis) for axis in shape.raw.view(np.int64))
        if min(num_rows, num_cols) < 1:
            raise SetupError(f"tensor {shape.name} holds [{num_rows}, {num_cols}]")
        num_groups = require_matrix(scale)[1]
        scale.require_shape((num_rows, num_groups))
        weight.require_shape((num_rows, -(-num_cols // _FIELDS)))
        self.shape: Final[tuple[int, ...]] = (num_rows, num_cols)
        self._words = weight.words()
        zeros = np.full((num_groups, num_rows), _MIDDLE, dtype=np.float32)
        if "weight_zero_point" in parts:
            packed = parts["weight_zero_point"]
            packed.require_shape((-(-num_rows // _FIELDS), num_groups))
            zeros = _last_axis(np.ascontiguousarray(packed.words().T))[:, :num_rows].astype(np.float32)
        group_size = _group_size(num_cols, num_groups, scale)
        columns = _column_groups(parts.get("weight_g_idx"), num_cols, group_size)
        self._grid = _Grid(np.ascontiguousarray(scale.floats().T), zeros, group_size, columns)

    def read(self, start: int, stop: int) -> FloatRows:
        """See RowReader."""
        return self._grid.apply(_last_axis(self._words[start:stop])[:, : self.shape[1]], start, stop)


def _last_axis(words: NDArray[np.uint32], order: tuple[int, ...] = tuple(range(_FIELDS))) -> NDArray[np.uint8]:
    """Nibbles of words [A, B] as [A, 8 B]; nibble i goes to place order[i] of its word's eight."""
    codes = np.empty((*words.shape, _FIELDS), dtype=np.uint8)
    for nibble, place in enumerate(order):
        codes[:, :, place] = (words >> (4 * nibble)) & 15
    return codes.reshape(words.shape[0], -1)


def _group_size(num_cols: int, num_groups: int, scale: StoredArray) -> int:
    if num_cols % num_groups:
        raise SetupError(f"tensor {scale.name} has {num_groups} groups, which do not divide {num_cols} columns")
    return num_cols // num_groups


def _column_groups(index: StoredArray | None, num_cols: int, group_size: int) -> NDArray[np.intp] | None:
    """A stored group index, None where it says what the group size says."""
    if index is None:
        return None
    index.require_shape((num_cols,))
    groups = index.words().astype(np.intp)
    if groups.max() >= num_cols // group_size:
        raise SetupError(f"tensor {index.name} names group {groups.max()}, there are {num_cols // group_size}")
    return None if np.array_equal(groups, np.arange(num_cols) // group_size) else groups
