"""The two stored forms of a linear layer's weight. Owns shapes and dtypes; computes nothing (see the contract)."""

from dataclasses import dataclass

import torch

from engine.ops.linear_layout import LAYOUT_VERSION, Bits, num_groups, num_high_bits, num_words

_HIGH_DTYPES = {1: torch.uint8, 2: torch.int16}


@dataclass(frozen=True, slots=True, eq=False)
class DenseMatrix:
    """Rows as numbers.

    Shapes:  weight [N, K] fp32 or bf16, contiguous.
    """

    weight: torch.Tensor

    def __post_init__(self) -> None:
        assert self.weight.dim() == 2 and self.weight.is_contiguous()
        assert self.weight.dtype in (torch.float32, torch.bfloat16)

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

    Shapes:  codes [N, num_words(K, bits)] int32; scales, minima [ceil(K / group_size), N] fp16; high, for 5 and 6 bits
             only, as codes but uint8 (5) or int16 (6); all contiguous.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor | None
    bits: Bits
    group_size: int
    num_rows: int
    num_cols: int
    layout_version: int = LAYOUT_VERSION
    high: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert self.layout_version == LAYOUT_VERSION, f"layout {self.layout_version}, this code reads {LAYOUT_VERSION}"
        groups = (num_groups(self.num_cols, self.group_size), self.num_rows)
        assert self.codes.shape == (self.num_rows, num_words(self.num_cols, self.bits))
        assert self.codes.dtype == torch.int32 and self.codes.is_contiguous()
        high_bits = num_high_bits(self.bits)
        assert (self.high is not None) == (high_bits > 0), f"{self.bits} bits and high={self.high is not None}"
        if self.high is not None:
            assert self.high.shape == self.codes.shape and self.high.is_contiguous()
            assert self.high.dtype == _HIGH_DTYPES[high_bits]
        for grid in (self.scales,) if self.minima is None else (self.scales, self.minima):
            assert grid.shape == groups and grid.dtype == torch.float16 and grid.is_contiguous()

    @property
    def stored_bytes(self) -> int:
        """Bytes one pass over the matrix reads."""
        optional = sum(tensor.nbytes for tensor in (self.minima, self.high) if tensor is not None)
        return self.codes.nbytes + self.scales.nbytes + optional


Matrix = DenseMatrix | QuantizedMatrix
