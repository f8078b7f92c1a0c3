"""Both forms of the gated delta rule against an fp64 recurrence, splits, and rollback of every length."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.ops.gated_delta import (
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    advance,
    advance_chunked,
    commit,
    gated_rmsnorm,
    make_record,
    propose,
)
from support import gated_delta_oracle as oracle

KEY_DIM, VALUE_DIM = 32, 24
HEADS = {"1:1": (2, 2), "2:1": (2, 4), "3:1": (2, 6)}
SHORT_LENGTHS = (1, 63, 64, 65, 200)
# fp32 rounding over a decaying recurrence; outputs and states are of order 1.
TOLERANCE = 3e-6
FORMS = {"advance": advance, "advance_chunked": advance_chunked}


class Layer:
    """Random weights, inputs and state of one layer, as tensors and for the oracle."""

    def __init__(self, heads: tuple[int, int], num_tokens: int, seed: int = 0, decay: float = 1.0) -> None:
        num_key_heads, num_heads = heads
        num_channels = 2 * num_key_heads * KEY_DIM + num_heads * VALUE_DIM
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.a_log = torch.rand(num_heads, generator=generator) * 2 - 2 + float(np.log(decay))
        self.weights = DeltaWeights(0.5 * normal(4, num_channels), -self.a_log.exp(), 0.5 * normal(num_heads) - 1)
        self.inputs = DeltaInputs(
            normal(num_tokens, num_channels), normal(num_tokens, num_heads), normal(num_tokens, num_heads)
        )
        self.state = DeltaState(0.3 * normal(num_heads, KEY_DIM, VALUE_DIM), normal(3, num_channels))

    def run(self, form: str, state: DeltaState, first: int = 0, last: int | None = None) -> Tensor:
        last = len(self.inputs.qkv) if last is None else last
        out = torch.full((last - first, state.recurrent.shape[0], VALUE_DIM), torch.nan)
        FORMS[form](self.inputs.rows(first, last), self.weights, state, out)
        return out

    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        arrays = (self.inputs.qkv, self.inputs.a, self.inputs.b, self.weights.conv, self.a_log, self.weights.dt_bias,
                  self.state.recurrent, self.state.conv)  # fmt: skip
        return oracle.run(oracle.DeltaCase(*(x.double().numpy() for x in arrays)))


def assert_close(got: Tensor, want: np.ndarray, tolerance: float = TOLERANCE) -> None:
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got.double().numpy(), want, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("num_tokens", "ratio"), [*itertools.product(SHORT_LENGTHS, HEADS), (1000, "3:1")])
def test_form_matches_the_fp64_recurrence(num_tokens: int, ratio: str, form: str) -> None:
    layer = Layer(HEADS[ratio], num_tokens, seed=num_tokens)
    want_out, want_state, want_conv = layer.expected()
    state = layer.state.clone()
    assert_close(layer.run(form, state), want_out)
    assert_close(state.recurrent, want_state)
    np.testing.assert_array_equal(state.conv.numpy(), want_conv.astype(np.float32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", [1e-4, 60.0])
def test_slow_and_violent_decay_stay_exact(decay: float, form: str) -> None:
    """At 60 the log decay differences of a block reach thousands: exp of the unmasked triangle would overflow."""
    layer = Layer(HEADS["2:1"], 130, decay=decay)
    want_out, want_state, _ = layer.expected()
    state = layer.state.clone()
    assert_close(layer.run(form, state), want_out)
    assert_close(state.recurrent, want_state)


@pytest.mark.parametrize("form", FORMS)
def test_faint_heads_feel_the_epsilon_on_the_sum(form: str) -> None:
    """Rows whose squares sum to about 1e-6 per head: an epsilon on the mean would be 32 times larger."""
    layer = Layer(HEADS["2:1"], 66)
    layer.inputs.qkv[:, : 4 * KEY_DIM] *= 3e-4
    layer.state.conv[:, : 4 * KEY_DIM] *= 3e-4
    want_out, want_state, _ = layer.expected()
    state = layer.state.clone()
    assert_close(layer.run(form, state), want_out)
    assert_close(state.recurrent, want_state)


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_starts_from_zeros_and_zero_rows_are_harmless(form: str) -> None:
    layer = Layer(HEADS["3:1"], 70)
    state = DeltaState(torch.zeros_like(layer.state.recurrent), torch.zeros_like(layer.state.conv))
    layer.inputs.qkv.zero_()
    assert torch.equal(layer.run(form, state), torch.zeros(70, 6, VALUE_DIM))
    assert torch.equal(state.recurrent, torch.zeros_like(state.recurrent))


@pytest.mark.parametrize("split", [(1, 199), (63, 137), (64, 136), (65, 135), (100, 100)])
def test_advance_does_not_depend_on_the_split(split: tuple[int, int]) -> None:
    layer = Layer(HEADS["3:1"], 200)
    whole, parts = layer.state.clone(), layer.state.clone()
    want = layer.run("advance", whole)
    got = torch.cat([layer.run("advance", parts, 0, split[0]), layer.run("advance", parts, split[0], 200)])
    assert torch.equal(got, want)
    assert torch.equal(parts.recurrent, whole.recurrent)
    assert torch.equal(parts.conv, whole.conv)


@pytest.mark.parametrize("cuts", [(64, 128), (64,), (128, 192)])
def test_chunked_does_not_depend_on_splits_of_the_grid(cuts: tuple[int, ...]) -> None:
    layer = Layer(HEADS["3:1"], 200)
    whole, parts = layer.state.clone(), layer.state.clone()
    want = layer.run("advance_chunked", whole)
    edges = [0, *cuts, 200]
    got = [layer.run("advance_chunked", parts, a, b) for a, b in itertools.pairwise(edges)]
    assert torch.equal(torch.cat(got), want)
    assert torch.equal(parts.recurrent, whole.recurrent)
    assert torch.equal(parts.conv, whole.conv)


@pytest.mark.parametrize("cuts", [(37, 128), (1, 4, 130), (66, 132)])
def test_forms_mix_off_the_grid(cuts: tuple[int, ...]) -> None:
    layer = Layer(HEADS["2:1"], 200)
    want_out, want_state, _ = layer.expected()
    state = layer.state.clone()
    edges = [0, *cuts, 200]
    got = [
        layer.run(("advance_chunked", "advance")[i % 2], state, a, b)
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    assert_close(torch.cat(got), want_out)
    assert_close(state.recurrent, want_state)


@pytest.mark.parametrize("ratio", HEADS)
@pytest.mark.parametrize("num_columns", [1, 2, 4, 6])
def test_every_rollback_equals_never_having_drafted(num_columns: int, ratio: str) -> None:
    layer = Layer(HEADS[ratio], 100 + num_columns + 20)
    layer.run("advance_chunked", layer.state, 0, 100)
    record = make_record(layer.state, 6)
    for buffer in (record.k, record.u, record.g, record.beta, record.columns):
        buffer.fill_(torch.nan)
    before = layer.state.clone()
    out = torch.full((num_columns, layer.state.recurrent.shape[0], VALUE_DIM), torch.nan)
    propose(layer.inputs.rows(100, 100 + num_columns), layer.weights, layer.state, record, out)
    assert torch.equal(layer.state.recurrent, before.recurrent)
    assert torch.equal(layer.state.conv, before.conv)
    for num_accepted in range(num_columns + 1):
        committed, never = before.clone(), before.clone()
        commit(record, num_accepted, committed)
        if num_accepted:
            accepted_out = layer.run("advance", never, 100, 100 + num_accepted)
            assert torch.equal(out[:num_accepted], accepted_out)
        assert torch.equal(committed.recurrent, never.recurrent)
        assert torch.equal(committed.conv, never.conv)
        start = 100 + num_accepted
        assert torch.equal(
            layer.run("advance", committed, start, start + 20), layer.run("advance", never, start, start + 20)
        )


def test_rollback_at_full_width_on_two_threads() -> None:
    """The 27B's layer, whose state is large enough for torch to divide among threads."""
    generator = torch.Generator().manual_seed(8)
    weights = DeltaWeights(
        torch.randn(4, 10_240, generator=generator) / 2, -torch.rand(48, generator=generator), torch.zeros(48)
    )
    inputs = DeltaInputs(*(torch.randn(4, n, generator=generator) for n in (10_240, 48, 48)))
    start = DeltaState(torch.randn(48, 128, 128, generator=generator), torch.randn(3, 10_240, generator=generator))
    record, out = make_record(start, 4), torch.empty(4, 48, 128)
    torch.set_num_threads(2)
    propose(inputs, weights, start, record, out)
    for num_accepted in (1, 3):
        never, committed, want = start.clone(), start.clone(), torch.empty(num_accepted, 48, 128)
        advance(inputs.rows(0, num_accepted), weights, never, want)
        commit(record, num_accepted, committed)
        assert torch.equal(out[:num_accepted], want)
        assert torch.equal(committed.recurrent, never.recurrent)
    torch.set_num_threads(1)


def test_a_record_of_the_27b_takes_two_and_a_half_mib_a_column() -> None:
    state = DeltaState(torch.zeros(48, 128, 128), torch.zeros(3, 10_240, dtype=torch.bfloat16))
    assert 48 * make_record(state, 1).num_bytes == 48 * (8_192 + 24_576 + 384 + 20_480)


def test_narrow_raw_columns_keep_split_and_rollback_exact() -> None:
    layer = Layer(HEADS["3:1"], 30)
    narrow = DeltaInputs(*(x.to(torch.bfloat16) for x in (layer.inputs.qkv, layer.inputs.a, layer.inputs.b)))
    start = DeltaState(layer.state.recurrent, layer.state.conv.to(torch.bfloat16))
    record, never, committed = make_record(start, 5), start.clone(), start.clone()
    out, want = torch.zeros(5, 6, VALUE_DIM), torch.zeros(3, 6, VALUE_DIM)
    propose(narrow.rows(0, 5), layer.weights, start, record, out)
    advance(narrow.rows(0, 3), layer.weights, never, want)
    commit(record, 3, committed)
    assert torch.equal(out[:3], want)
    assert torch.equal(committed.recurrent, never.recurrent)
    assert torch.equal(committed.conv, never.conv)


def test_more_columns_than_the_record_holds_are_our_bug() -> None:
    layer = Layer(HEADS["1:1"], 3)
    record = make_record(layer.state, 2)
    with pytest.raises(AssertionError, match="3 columns, the record holds 2"):
        propose(layer.inputs, layer.weights, layer.state, record, torch.zeros(3, 2, VALUE_DIM))
    with pytest.raises(AssertionError, match="3 columns, the record holds 2"):
        commit(record, 3, layer.state)


def test_gated_norm_is_plain_weight_times_normed_times_silu() -> None:
    generator = torch.Generator().manual_seed(3)
    heads, z = (torch.randn(5, 3, 16, generator=generator) for _ in range(2))
    weight = torch.randn(16, generator=generator)
    x, gate = heads.double().numpy(), z.double().numpy()
    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    want = weight.double().numpy() * normed * gate / (1 + np.exp(-gate))
    assert_close(gated_rmsnorm(heads, z, weight, 1e-6), want)
