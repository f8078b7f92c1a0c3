"""The linear contract in torch fp32: what every kernel is compared with. Owns no layout and no speed."""

import torch
from torch.nn import functional

from engine.ops.linear.matrix import DenseMatrix, Matrix, QuantizedMatrix
from engine.ops.linear.packing import unpack_codes


def dequantize(matrix: Matrix) -> torch.Tensor:
    """The matrix as numbers.

    Shapes:  returns [N, K] fp32; a DenseMatrix returns its own weight, not a copy.
    """
    if isinstance(matrix, DenseMatrix):
        return matrix.weight
    codes = unpack_codes(matrix.codes, matrix.num_cols, matrix.bits)
    return _scale(codes, matrix, matrix.scales, matrix.minima)


def take_rows(matrix: Matrix, rows: torch.Tensor) -> torch.Tensor:
    """Chosen rows as numbers, without expanding the others.

    Shapes:  rows [T] int64, each in 0 .. N - 1; returns [T, K] fp32.
    """
    if isinstance(matrix, DenseMatrix):
        return matrix.weight.index_select(0, rows)
    codes = unpack_codes(matrix.codes.index_select(0, rows), matrix.num_cols, matrix.bits)
    minima = None if matrix.minima is None else matrix.minima.index_select(1, rows)
    return _scale(codes, matrix, matrix.scales.index_select(1, rows), minima)


def linear(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """x times the transposed matrix.

    Shapes:  x [T, K] fp32; returns [T, N] fp32.
    Numeric: fp32 products and sums; the order of the sum is the library's and may differ between T.
    """
    return functional.linear(x, dequantize(matrix))


def _scale(
    codes: torch.Tensor, matrix: QuantizedMatrix, scales: torch.Tensor, minima: torch.Tensor | None
) -> torch.Tensor:
    values = codes.to(torch.float32)  # [T, K]
    if minima is None:
        values -= float(1 << (matrix.bits - 1))
    values *= _spread(scales, matrix)
    if minima is not None:
        values += _spread(minima, matrix)
    return values


def _spread(grid: torch.Tensor, matrix: QuantizedMatrix) -> torch.Tensor:
    """[groups, T] fp16 -> [T, K] fp32, each number repeated over its group."""
    wide = grid.t().to(torch.float32).repeat_interleave(matrix.group_size, dim=1)
    return wide[:, : matrix.num_cols]
