"""The scale search against brute force: never much above the least possible squared error, exact where it can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.ops.linear_layout import Bits
from engine.weights.quantize import QuantizedRows, quantize_rows

# Squared error over the brute-force minimum; measured 1.002, 1.002, 1.005, 1.050 on Gaussian rows, less on heavy tails.
EXCESS: dict[Bits, float] = {4: 1.004, 5: 1.004, 6: 1.01, 8: 1.07}
# Squared error per energy of Gaussian groups of 64; measured 0.00807, 0.00204, 0.00050, 0.0000305.
GAUSSIAN_NMSE: dict[Bits, float] = {4: 0.0083, 5: 0.0021, 6: 0.00052, 8: 0.000032}


def decode(rows: QuantizedRows, bits: Bits) -> NDArray[np.float64]:
    """The stored formula, in fp64."""
    num_cols = rows.codes.shape[1]
    scales = np.repeat(rows.scales.astype(np.float64), 64, axis=1)[:, :num_cols]
    return scales * (rows.codes.astype(np.float64) - (1 << (bits - 1)))


def brute_force_error(group: NDArray[np.float64], bits: Bits) -> float:
    """Least squared error over a fine grid of fp16 scales of both signs, codes by rounding."""
    half = 1 << (bits - 1)
    peak = np.abs(group).max()
    scales = np.unique((peak / (half * np.linspace(0.6, 1.5, 1500))).astype(np.float16)).astype(np.float64)
    best = np.inf
    for scale in np.concatenate([scales, -scales]):
        codes = np.clip(np.rint(group / scale), -half, half - 1)
        best = min(best, float(((group - scale * codes) ** 2).sum()))
    return best


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
@pytest.mark.parametrize("heavy", [False, True])
def test_error_is_near_the_least_possible(bits: Bits, heavy: bool) -> None:
    rng = np.random.default_rng(bits)
    values = (rng.standard_t(4, (48, 64)) if heavy else rng.normal(size=(48, 64))).astype(np.float32) * 0.02
    rows = quantize_rows(values, bits)
    exact = values.astype(np.float64)
    ours = float(((decode(rows, bits) - exact) ** 2).sum())
    assert ours <= EXCESS[bits] * sum(brute_force_error(group, bits) for group in exact)
    assert rows.squared_error == pytest.approx(ours, rel=1e-4) and rows.energy == pytest.approx(
        (exact**2).sum(), rel=1e-4
    )


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_error_of_gaussian_rows(bits: Bits) -> None:
    values = np.random.default_rng(1).normal(size=(64, 1024)).astype(np.float32)
    rows = quantize_rows(values, bits)
    assert rows.squared_error / rows.energy < GAUSSIAN_NMSE[bits]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([4, 5, 6, 8]), st.integers(1, 200), st.sampled_from([1e-6, 1.0, 1e4]))
def test_nearest_code_for_the_scale_and_never_worse_than_zero(
    seed: int, bits: Bits, num_cols: int, size: float
) -> None:
    values = (np.random.default_rng(seed).standard_cauchy((3, num_cols)) * size).clip(-6e4, 6e4).astype(np.float32)
    rows = quantize_rows(values, bits)
    assert rows.codes.shape == values.shape and rows.scales.shape == (3, -(-num_cols // 64))
    assert int(rows.codes.max()) < 1 << bits
    half = 1 << (bits - 1)
    scales = np.repeat(rows.scales.astype(np.float64), 64, axis=1)[:, :num_cols]
    with np.errstate(divide="ignore", invalid="ignore"):
        ideal = np.where(scales == 0, 0, np.clip(values / scales, -half, half - 1))
    assert np.abs(ideal - (rows.codes.astype(np.float64) - half)).max() <= 0.5 + 1e-3
    assert ((decode(rows, bits) - values) ** 2).sum() <= (values.astype(np.float64) ** 2).sum() * (1 + 1e-6)


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_codes_of_a_known_scale_come_back_exactly(bits: Bits) -> None:
    rng = np.random.default_rng(7)
    scales = rng.uniform(0.001, 0.1, (20, 4)).astype(np.float16)
    codes = rng.integers(-8, 8, (20, 256))
    values = (np.repeat(scales.astype(np.float32), 64, axis=1) * codes).astype(np.float32)
    rows = quantize_rows(values, bits, hints=scales)
    assert np.array_equal(decode(rows, bits), values) and rows.squared_error == 0.0


def test_absurd_hints_change_nothing() -> None:
    values = np.random.default_rng(3).normal(size=(8, 128)).astype(np.float32)
    plain = quantize_rows(values, 4)
    for hint in (0.0, np.inf, np.nan, 6e-8, -6e4):
        hinted = quantize_rows(values, 4, hints=np.full((8, 2), hint, dtype=np.float16))
        assert np.array_equal(hinted.codes, plain.codes) and np.array_equal(hinted.scales, plain.scales)


def test_zeros_stay_zeros() -> None:
    values = np.zeros((2, 100), dtype=np.float32)
    values[1, 70] = 3.0
    rows = quantize_rows(values, 4)
    assert np.array_equal(decode(rows, 4), values) and rows.scales[0].tolist() == [0.0, 0.0]


def test_numbers_beyond_fp16_show_in_the_scale() -> None:
    values = np.full((1, 64), 1e9, dtype=np.float32)
    assert np.isinf(quantize_rows(values, 4).scales).all()


def test_rows_do_not_depend_on_their_neighbours() -> None:
    values = np.random.default_rng(5).normal(size=(40, 192)).astype(np.float32)
    whole = quantize_rows(values, 5)
    for start, stop in ((0, 1), (7, 23), (39, 40)):
        part = quantize_rows(values[start:stop], 5)
        assert np.array_equal(part.codes, whole.codes[start:stop])
        assert np.array_equal(part.scales, whole.scales[start:stop])
