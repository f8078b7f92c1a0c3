"""The two stored forms of a linear layer's weight. Owns shapes and dtypes; computes nothing (see the contract)."""

from dataclasses import dataclass
from typing import Literal

import torch

Bits = Literal[4, 8]
LAYOUT_VERSION = 1
WORD_BITS = 32
PLANE_ELEMENTS = 64


def num_words(num_cols: int, bits: Bits) -> int:
    """int32 words of one packed row of num_cols elements; num_cols must be a multiple of 32 / bits."""
    assert num_cols % (WORD_BITS // bits) == 0, f"{num_cols} columns of {bits} bits do not fill whole words"
    return num_cols * bits // WORD_BITS


def num_groups(num_cols: int, group_size: int) -> int:
    """Groups of one row; the last one may be short."""
    return -(-num_cols // group_size)


@dataclass(frozen=True, slots=True, eq=False)
class DenseMatrix:
    """Expanded rows.

    Shapes:  weight [N, K] fp32, contiguous.
    """

    weight: torch.Tensor

    def __post_init__(self) -> None:
        assert self.weight.dim() == 2 and self.weight.dtype == torch.float32 and self.weight.is_contiguous()

    @property
    def num_rows(self) -> int:
        """Output features N."""
        return self.weight.shape[0]

    @property
    def num_cols(self) -> int:
        """Input features K."""
        return self.weight.shape[1]

    @property
    def stored_bytes(self) -> int:
        """Bytes one pass over the matrix reads."""
        return self.weight.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """Packed rows with a scale, and optionally a minimum, per group of group_size columns.

    Shapes:  codes [N, K * bits / 32] int32; scales, minima [ceil(K / group_size), N] fp16; all contiguous.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor | None
    bits: Bits
    group_size: int
    num_rows: int
    num_cols: int
    layout_version: int = LAYOUT_VERSION

    def __post_init__(self) -> None:
        assert self.layout_version == LAYOUT_VERSION, f"layout {self.layout_version}, this code reads {LAYOUT_VERSION}"
        groups = (num_groups(self.num_cols, self.group_size), self.num_rows)
        assert self.codes.shape == (self.num_rows, num_words(self.num_cols, self.bits))
        assert self.codes.dtype == torch.int32 and self.codes.is_contiguous()
        for grid in (self.scales,) if self.minima is None else (self.scales, self.minima):
            assert grid.shape == groups and grid.dtype == torch.float16 and grid.is_contiguous()

    @property
    def stored_bytes(self) -> int:
        """Bytes one pass over the matrix reads."""
        minima_bytes = 0 if self.minima is None else self.minima.nbytes
        return self.codes.nbytes + self.scales.nbytes + minima_bytes


Matrix = DenseMatrix | QuantizedMatrix
