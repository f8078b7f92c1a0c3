"""The linear contract: packing is a bijection in the stated order, dequantisation is the stated formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.ops.linear import (
    Bits,
    DenseMatrix,
    QuantizedMatrix,
    dequantize,
    linear,
    num_groups,
    num_words,
    pack_codes,
    pack_high_bits,
    take_rows,
    unpack_codes,
)

BITS: list[Bits] = [4, 5, 6, 8]


@st.composite
def codes(draw: st.DrawFn) -> tuple[NDArray[np.uint8], Bits]:
    bits = draw(st.sampled_from(BITS))
    num_rows = draw(st.integers(1, 5))
    num_cols = draw(st.integers(1, 300)) * 8
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, 1 << bits, (num_rows, num_cols), dtype=np.uint8), bits


def random_matrix(
    num_rows: int, num_cols: int, bits: Bits, group_size: int, *, minima: bool, seed: int = 0
) -> tuple[QuantizedMatrix, NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << bits, (num_rows, num_cols), dtype=np.uint8)
    grid = (num_groups(num_cols, group_size), num_rows)
    matrix = QuantizedMatrix(
        codes=torch.from_numpy(pack_codes(values, bits)),
        high=high_lanes(values, bits),
        scales=torch.from_numpy(rng.normal(size=grid).astype(np.float16)),
        minima=torch.from_numpy(rng.normal(size=grid).astype(np.float16)) if minima else None,
        bits=bits,
        group_size=group_size,
        num_rows=num_rows,
        num_cols=num_cols,
    )
    return matrix, values


def high_lanes(values: NDArray[np.uint8], bits: Bits) -> torch.Tensor | None:
    return torch.from_numpy(pack_high_bits(values, bits)) if bits in (5, 6) else None


def code_of(words: NDArray[np.int32], high: torch.Tensor | None, row: int, element: int, num_cols: int) -> int:
    """The code of one element of four-bit fields, found by the contract's prose with integer arithmetic."""
    first, j, i = place_of(element, num_cols, fields=8)
    code = (int(words[row, first + j]) & 0xFFFFFFFF) >> (4 * i) & 15
    if high is not None:
        num_bits = high.element_size()  # a lane has eight fields, so as many bits a field as bytes
        code |= (int(high[row, first + j]) >> (num_bits * i) & ((1 << num_bits) - 1)) << 4
    return code


def place_of(element: int, num_cols: int, fields: int) -> tuple[int, int, int]:
    """(first word of the superblock, word in it, field)."""
    superblock = 64 * fields
    width = 64 if element < num_cols // superblock * superblock else num_cols % superblock // fields
    i, j = divmod(element % superblock, width)
    return element // superblock * 64, j, i


def byte_of(words: NDArray[np.int32], row: int, element: int, num_cols: int) -> int:
    first, j, i = place_of(element, num_cols, fields=4)
    return (int(words[row, first + j]) & 0xFFFFFFFF) >> (8 * i) & 255


@settings(max_examples=60)
@given(codes())
def test_pack_then_unpack_is_identity(case: tuple[NDArray[np.uint8], Bits]) -> None:
    values, bits = case
    words = pack_codes(values, bits)
    assert words.shape == (values.shape[0], values.shape[1] // (4 if bits == 8 else 8))
    high = high_lanes(values, bits)
    assert np.array_equal(unpack_codes(torch.from_numpy(words), values.shape[1], bits, high).numpy(), values)


@settings(max_examples=25, deadline=None)
@given(codes())
def test_every_field_lies_where_the_contract_says(case: tuple[NDArray[np.uint8], Bits]) -> None:
    values, bits = case
    words = pack_codes(values, bits)
    num_rows, num_cols = values.shape
    high = high_lanes(values, bits)
    for row in range(num_rows):
        for element in range(num_cols):
            found = (
                byte_of(words, row, element, num_cols) if bits == 8 else code_of(words, high, row, element, num_cols)
            )
            assert found == values[row, element]


@pytest.mark.parametrize("bits", BITS)
def test_first_words_of_a_superblock_spelt_out(bits: Bits) -> None:
    fields, width = (4, 8) if bits == 8 else (8, 4)
    values = (np.arange(64 * fields, dtype=np.int64) // 64).astype(np.uint8)[np.newaxis]  # element's plane as its code
    expected = sum(plane << (plane * width) for plane in range(fields))
    assert {int(word) & 0xFFFFFFFF for word in pack_codes(values, bits)[0]} == {expected}


def test_smollm2_row_has_one_superblock_and_a_tail_of_eight_words() -> None:
    values = np.zeros((1, 576), dtype=np.uint8)
    values[0, 512 + 8 * 3 + 5] = 15
    words = pack_codes(values, 4)
    assert words.shape == (1, 72)
    assert int(words[0, 64 + 5]) == 15 << 12 and np.count_nonzero(words) == 1


@pytest.mark.parametrize(("num_cols", "bits"), [(4, 4), (9, 4), (2, 8), (518, 8), (12, 5), (20, 6)])
def test_columns_that_fill_no_whole_word_are_our_bug(num_cols: int, bits: Bits) -> None:
    with pytest.raises(AssertionError, match="whole words"):
        num_words(num_cols, bits)


def dequantize_slowly(matrix: QuantizedMatrix, values: NDArray[np.uint8]) -> NDArray[np.float64]:
    """One element at a time in fp64, by the contract's formula."""
    scales = matrix.scales.numpy().astype(np.float64)
    minima = None if matrix.minima is None else matrix.minima.numpy().astype(np.float64)
    out = np.empty(values.shape, dtype=np.float64)
    for n in range(matrix.num_rows):
        for k in range(matrix.num_cols):
            group = k // matrix.group_size
            if minima is None:
                out[n, k] = scales[group, n] * (int(values[n, k]) - (1 << (matrix.bits - 1)))
            else:
                out[n, k] = scales[group, n] * int(values[n, k]) + minima[group, n]
    return out


@pytest.mark.parametrize("minima", [False, True])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("num_rows", "num_cols", "group_size"), [(3, 576, 32), (2, 512, 64), (1, 8, 32), (5, 584, 48)])
def test_dequantize_equals_the_formula(num_rows: int, num_cols: int, group_size: int, bits: Bits, minima: bool) -> None:
    matrix, values = random_matrix(num_rows, num_cols, bits, group_size, minima=minima)
    expected = dequantize_slowly(matrix, values).astype(np.float32)
    assert np.array_equal(dequantize(matrix).numpy(), expected), "one rounding to fp32, no more"


@pytest.mark.parametrize("minima", [False, True])
def test_take_rows_equals_rows_of_dequantize(minima: bool) -> None:
    matrix, _ = random_matrix(37, 576, 8, 32, minima=minima)
    rows = torch.tensor([36, 0, 0, 17])
    assert torch.equal(take_rows(matrix, rows), dequantize(matrix)[rows])
    dense = DenseMatrix(dequantize(matrix))
    assert torch.equal(take_rows(dense, rows), dense.weight[rows])


@pytest.mark.parametrize("num_tokens", [1, 3, 65])
@pytest.mark.parametrize("minima", [False, True])
def test_linear_against_fp64(num_tokens: int, minima: bool) -> None:
    matrix, _ = random_matrix(63, 520, 4, 64, minima=minima)
    x = torch.randn(num_tokens, 520, generator=torch.Generator().manual_seed(1))
    exact = x.double() @ dequantize(matrix).double().T
    bound = 520 * 2**-23 * float((x.double().abs() @ dequantize(matrix).double().abs().T).max())
    for form in (matrix, DenseMatrix(dequantize(matrix))):
        assert float((linear(x, form).double() - exact).abs().max()) <= bound


def test_high_lanes_spelt_out() -> None:
    values = np.zeros((1, 1024), dtype=np.uint8)
    values[0, 512 + 64 * 3 + 5] = 0b11_0010
    assert int(pack_codes(values, 6)[0, 64 + 5]) == 0b0010 << 12
    lanes = pack_high_bits(values, 6)
    assert lanes.dtype == np.int16 and int(lanes[0, 64 + 5]) == 0b11 << 6 and np.count_nonzero(lanes) == 1
    values[0, 512 + 64 * 3 + 5] = 0b1_0010
    lanes = pack_high_bits(values, 5)
    assert lanes.dtype == np.uint8 and int(lanes[0, 64 + 5]) == 1 << 3 and np.count_nonzero(lanes) == 1


def test_rows_of_bf16_widen_exactly() -> None:
    weight = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    matrix = DenseMatrix(weight)
    assert torch.equal(dequantize(matrix), weight.to(torch.float32))
    assert torch.equal(take_rows(matrix, torch.tensor([4, 1])), weight[[4, 1]].to(torch.float32))
    assert matrix.stored_bytes == 5 * 24 * 2


def test_wrong_shapes_are_our_bug() -> None:
    six, _ = random_matrix(4, 64, 6, 32, minima=False)
    with pytest.raises(AssertionError, match="6 bits and high=False"):
        QuantizedMatrix(six.codes, six.scales, None, 6, 32, 4, 64)
    matrix, _ = random_matrix(4, 64, 4, 32, minima=False)
    with pytest.raises(AssertionError):
        QuantizedMatrix(matrix.codes, matrix.scales.t().contiguous(), None, 4, 32, 4, 64)
    with pytest.raises(AssertionError, match="layout 2"):
        QuantizedMatrix(matrix.codes, matrix.scales, None, 4, 32, 4, 64, layout_version=2)
    with pytest.raises(AssertionError):
        DenseMatrix(torch.zeros(3, 4, dtype=torch.float16))


def test_stored_bytes_are_what_one_pass_reads() -> None:
    matrix, _ = random_matrix(16, 1024, 4, 32, minima=True)
    assert matrix.stored_bytes == 16 * 1024 // 2 + 2 * 2 * 16 * 32
    five, _ = random_matrix(16, 1024, 5, 64, minima=False)
    assert five.stored_bytes == 16 * 1024 * 5 // 8 + 2 * 16 * 16
