"""The linear contract in torch fp32: what every kernel is compared with. Owns no layout and no speed."""

import torch
from torch.nn import functional

from engine.ops.linear.matrix import DenseMatrix, Matrix, QuantizedMatrix
from engine.ops.linear.unpacking import unpack_codes


def dequantize(matrix: Matrix) -> torch.Tensor:
    """The matrix as numbers.

    Shapes:  returns [N, K] fp32; a DenseMatrix of fp32 returns its own weight, not a copy.
    """
    if isinstance(matrix, DenseMatrix):
        return matrix.weight.to(torch.float32)
    codes = unpack_codes(matrix.codes, matrix.num_cols, matrix.bits, matrix.high)
    return _scale(codes, matrix, matrix.scales, matrix.minima)


def take_rows(matrix: Matrix, rows: torch.Tensor) -> torch.Tensor:
    """Chosen rows as numbers, without expanding the others.

    Shapes:  rows [T] int64, each in 0 .. N - 1; returns [T, K] fp32.
    """
    if isinstance(matrix, DenseMatrix):
        return matrix.weight.index_select(0, rows).to(torch.float32)
    high = None if matrix.high is None else matrix.high.index_select(0, rows)
    codes = unpack_codes(matrix.codes.index_select(0, rows), matrix.num_cols, matrix.bits, high)
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
    """Codes [T, K] uint8 to fp32 with the groups' scales and minima [ceil(K / G), T]; the last group may be short."""
    values = codes.to(torch.float32)
    if minima is None:
        values -= float(1 << (matrix.bits - 1))
    num_whole = matrix.num_cols // matrix.group_size
    split = num_whole * matrix.group_size
    for span, groups in ((values[:, :split], slice(0, num_whole)), (values[:, split:], slice(num_whole, None))):
        if span.shape[1] > 0:
            _scale_groups(span, scales[groups], None if minima is None else minima[groups])
    return values


def _scale_groups(values: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None) -> None:
    """Multiply and add in place: values [T, groups * width], scales and minima [groups, T]."""
    grouped = values.view(values.shape[0], scales.shape[0], -1)
    grouped *= scales.t().to(torch.float32).unsqueeze(2)
    if minima is not None:
        grouped += minima.t().to(torch.float32).unsqueeze(2)
