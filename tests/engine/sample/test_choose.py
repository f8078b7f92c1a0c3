"""Filters and draw: the fast path against the reference, ties, edges, and frequencies against the softmax."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.ops.sample import (
    SampleParams,
    add_bias,
    choose,
    measure_logprobs,
    penalize_output,
    penalize_repetition,
    reference,
)

# 99.9 % quantiles of chi-square for the degrees of freedom used below.
CHI_SQUARE_LIMIT = {5: 20.5, 7: 24.3, 11: 31.3, 19: 43.8}


def logits_of(size: int, seed: int, spread: float = 3.0) -> NDArray[np.float32]:
    return (spread * np.random.default_rng(seed).normal(size=size)).astype(np.float32)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([-np.inf, -2.0, -1.0, 0.0, 0.5, 1.0, 2.5, 30.0]), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.2, 1.0, 7.5]),
    st.sampled_from([0, 1, 2, 5, 100]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.integers(0, 2**63 - 1),
)
def test_choose_equals_reference_on_ties_and_masks(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = np.array(values, dtype=np.float32)
    if not np.isfinite(logits).any():
        logits[0] = 0.0
    params = SampleParams(temperature, top_k, top_p, min_p, seed)
    assert choose(logits, params, 5) == reference.choose(logits, params, 5)


@pytest.mark.parametrize("size", [1, 63, 1000, 5003])
def test_choose_equals_reference_on_wide_logits(size: int) -> None:
    for seed, (top_k, top_p, min_p) in enumerate(itertools.product((0, 1, 20), (0.3, 0.95, 1.0), (0.0, 0.02))):
        logits = logits_of(size, seed)
        params = SampleParams(0.8, top_k, top_p, min_p, seed)
        assert choose(logits, params, 77) == reference.choose(logits, params, 77)


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = np.array([0.0, 4.0, 4.0, 1.0], dtype=np.float32)
    assert choose(logits, SampleParams(0.0, 0, 1.0, 0.0, 9), 0) == 1
    kept, _ = reference.kept_probabilities(logits, SampleParams(1.0, 1, 1.0, 0.0, 9))
    assert kept.tolist() == [1]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SampleParams(1.0, 0, 1.0, 0.0, 0), [4, 3, 2, 1, 0]),
        (SampleParams(1.0, 2, 1.0, 0.0, 0), [4, 3]),
        (SampleParams(1.0, 0, 0.6, 0.0, 0), [4, 3]),  # 0.4 does not reach 0.6, 0.4 + 0.27 does
        (SampleParams(1.0, 0, 0.39, 0.0, 0), [4]),
        (SampleParams(1.0, 3, 0.75, 0.0, 0), [4, 3]),  # top_k renormalises: (0.4 + 0.27) / 0.87 reaches 0.75
        (SampleParams(1.0, 0, 1.0, 0.45, 0), [4, 3, 2]),
        (SampleParams(2.0, 0, 1.0, 0.45, 0), [4, 3, 2, 1]),  # temperature comes before min_p
    ],
)
def test_filters_keep_what_the_contract_says(params: SampleParams, kept: list[int]) -> None:
    logits = np.log([0.02, 0.11, 0.2, 0.27, 0.4]).astype(np.float32)
    ids, _ = reference.kept_probabilities(logits, params)
    assert ids.tolist() == kept
    assert {choose(logits, params, position) for position in range(400)} <= set(kept)


@pytest.mark.parametrize(
    "params",
    [
        SampleParams(1.0, 0, 1.0, 0.0, 11),
        SampleParams(0.7, 8, 1.0, 0.0, 12),
        SampleParams(1.3, 0, 0.9, 0.0, 13),
        SampleParams(1.0, 0, 1.0, 0.1, 14),
    ],
)
def test_frequencies_match_the_filtered_softmax(params: SampleParams) -> None:
    logits = logits_of(20, 3, spread=1.0)
    ids, expected = reference.kept_probabilities(logits, params)
    num_draws = 20_000
    drawn = [choose(logits, params, position) for position in range(num_draws)]
    counts = np.bincount(drawn, minlength=20)
    assert counts.sum() == counts[ids].sum(), "an id that the filters drop was drawn"
    wanted = expected * num_draws
    chi_square = float(((counts[ids] - wanted) ** 2 / wanted).sum())
    limit = next(value for freedom, value in CHI_SQUARE_LIMIT.items() if freedom >= len(ids) - 1)
    assert chi_square < limit, f"chi-square {chi_square:.1f} for {len(ids)} ids"


def test_frequencies_over_seeds_match_too() -> None:
    logits = logits_of(6, 4, spread=1.0)
    expected = reference.kept_probabilities(logits, SampleParams(1.0, 0, 1.0, 0.0, 0))
    num_draws = 10_000
    drawn = [choose(logits, SampleParams(1.0, 0, 1.0, 0.0, seed), 42) for seed in range(num_draws)]
    wanted = np.zeros(6)
    wanted[expected[0]] = expected[1] * num_draws
    chi_square = float(((np.bincount(drawn, minlength=6) - wanted) ** 2 / wanted).sum())
    assert chi_square < CHI_SQUARE_LIMIT[5]


def test_penalties_and_bias_change_only_their_ids() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5], dtype=np.float32)
    repeated = logits.copy()
    penalize_repetition(repeated, np.array([0, 1]), 2.0)
    assert repeated.tolist() == [1.0, -4.0, 1.0, 0.5]
    counted = logits.copy()
    penalize_output(counted, np.array([0, 3]), np.array([3, 1], dtype=np.int32), 0.5, 0.25)
    assert counted.tolist() == [0.25, -2.0, 1.0, -0.25]
    biased = logits.copy()
    add_bias(biased, np.array([2]), np.array([-100.0], dtype=np.float32))
    assert biased.tolist() == [2.0, -2.0, -99.0, 0.5]


def test_logprobs_are_the_log_softmax_with_ties_by_id() -> None:
    logits = np.array([1.0, 3.0, 3.0, -50.0, 2.0], dtype=np.float32)
    measured = measure_logprobs(logits, 4, 3)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    assert measured.chosen == pytest.approx(exact[4])
    assert [token_id for token_id, _ in measured.top] == [1, 2, 4]
    assert [value for _, value in measured.top] == pytest.approx([exact[1], exact[2], exact[4]])
    assert measure_logprobs(logits, 4, 0).top == []
    assert len(measure_logprobs(logits, 4, 20).top) == 5
