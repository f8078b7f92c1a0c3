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
    take_rows,
    unpack_codes,
)

BITS: list[Bits] = [4, 8]


@st.composite
def codes(draw: st.DrawFn) -> tuple[NDArray[np.uint8], Bits]:
    bits = draw(st.sampled_from(BITS))
    num_rows = draw(st.integers(1, 5))
    num_cols = draw(st.integers(1, 300)) * (32 // bits)
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
        scales=torch.from_numpy(rng.normal(size=grid).astype(np.float16)),
        minima=torch.from_numpy(rng.normal(size=grid).astype(np.float16)) if minima else None,
        bits=bits,
        group_size=group_size,
        num_rows=num_rows,
        num_cols=num_cols,
    )
    return matrix, values


def field_of(words: NDArray[np.int32], row: int, element: int, num_cols: int, bits: int) -> int:
    """The code of one element, found by the contract's prose with integer arithmetic."""
    fields = 32 // bits
    superblock = 64 * fields
    first_word = element // superblock * 64
    width = 64 if element < num_cols // superblock * superblock else num_cols % superblock // fields
    i, j = divmod(element % superblock, width)
    return (int(words[row, first_word + j]) & 0xFFFFFFFF) >> (i * bits) & ((1 << bits) - 1)


@settings(max_examples=60)
@given(codes())
def test_pack_then_unpack_is_identity(case: tuple[NDArray[np.uint8], Bits]) -> None:
    values, bits = case
    words = pack_codes(values, bits)
    assert words.shape == (values.shape[0], values.shape[1] * bits // 32)
    assert np.array_equal(unpack_codes(torch.from_numpy(words), values.shape[1], bits).numpy(), values)


@settings(max_examples=25, deadline=None)
@given(codes())
def test_every_field_lies_where_the_contract_says(case: tuple[NDArray[np.uint8], Bits]) -> None:
    values, bits = case
    words = pack_codes(values, bits)
    num_rows, num_cols = values.shape
    for row in range(num_rows):
        found = [field_of(words, row, element, num_cols, bits) for element in range(num_cols)]
        assert found == values[row].tolist()


@pytest.mark.parametrize("bits", BITS)
def test_first_words_of_a_superblock_spelt_out(bits: Bits) -> None:
    fields = 32 // bits
    values = (np.arange(64 * fields, dtype=np.int64) // 64).astype(np.uint8)[np.newaxis]  # element's plane as its code
    expected = sum(plane << (plane * bits) for plane in range(fields))
    assert {int(word) & 0xFFFFFFFF for word in pack_codes(values, bits)[0]} == {expected}


def test_smollm2_row_has_one_superblock_and_a_tail_of_eight_words() -> None:
    values = np.zeros((1, 576), dtype=np.uint8)
    values[0, 512 + 8 * 3 + 5] = 15
    words = pack_codes(values, 4)
    assert words.shape == (1, 72)
    assert int(words[0, 64 + 5]) == 15 << 12 and np.count_nonzero(words) == 1


@pytest.mark.parametrize(("num_cols", "bits"), [(4, 4), (9, 4), (2, 8), (518, 8)])
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


def test_wrong_shapes_are_our_bug() -> None:
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
