"""How a matrix is held in memory and in an artifact: as numbers or as codes with scales. Owns the regions it takes.

Region names are the matrix's with a suffix: weight, or codes, high, scales, minima in this order. No torch, no file.
"""

from dataclasses import dataclass
from typing import Literal

from engine.memory.layout import DType
from engine.ops.linear_layout import Bits, num_groups, num_high_bits, num_words
from engine.weights.need import MatrixNeed

DenseDType = Literal["fp32", "bf16"]
_HIGH_DTYPES: dict[int, DType] = {1: "uint8", 2: "int16"}


@dataclass(frozen=True, slots=True)
class DenseForm:
    """Numbers, row by row."""

    dtype: DenseDType


@dataclass(frozen=True, slots=True)
class PackedForm:
    """Codes of `bits` with a scale, and perhaps a minimum, per group of columns."""

    bits: Bits
    group_size: int
    has_minimum: bool = False


MatrixForm = DenseForm | PackedForm


@dataclass(frozen=True, slots=True)
class MatrixRegion:
    """One region of one matrix; name is the whole name in the memory plan."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


def matrix_regions(need: MatrixNeed, form: MatrixForm) -> list[MatrixRegion]:
    """The regions of one matrix, in the order of the memory plan."""
    num_rows, num_cols = need.num_rows, need.num_cols
    if isinstance(form, DenseForm):
        return [MatrixRegion(f"{need.region}.weight", (num_rows, num_cols), form.dtype)]
    words = (num_rows, num_words(num_cols, form.bits))
    groups = (num_groups(num_cols, form.group_size), num_rows)
    regions = [MatrixRegion(f"{need.region}.codes", words, "int32")]
    if num_high_bits(form.bits):
        regions.append(MatrixRegion(f"{need.region}.high", words, _HIGH_DTYPES[num_high_bits(form.bits)]))
    regions.append(MatrixRegion(f"{need.region}.scales", groups, "fp16"))
    if form.has_minimum:
        regions.append(MatrixRegion(f"{need.region}.minima", groups, "fp16"))
    return regions
