"""Hybrid models against transformers in fp32: whole prefill, every cutting, single steps, at every position."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from engine.hf_config import read_config
from engine.model.decoder import Decoder
from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

from .conftest import SHAPES, Oracle

MakeHybrid = Callable[[Shape], Hybrid]
MakeOracle = Callable[[Shape, int], Oracle]

# fp32 against fp32: what orders of summation differ by, per unit of the logits' standard deviation.
TOLERANCE = 1e-4
# And in units of what the library's own two ways of computing the same thing differ by.
DRIFTS = 3.0
LENGTH = 200
LONG = 1000
CUTS = ([64, 128], [1], [3, 199], [37, 128], [64, 65, 66], [63, 64, 65, 191, 192, 193], list(range(13, LENGTH, 13)))


def score(decoder: Decoder, ids: Ids, cuts: list[int]) -> Floats:
    """Logits of every position, prefilled in the spans between cuts."""
    decoder.rewind(0)
    return np.concatenate([decoder.score(ids[start:end]) for start, end in pairwise([0, *cuts, len(ids)])])


def steps(decoder: Decoder, ids: Ids) -> Floats:
    """Logits of every position, each computed alone."""
    decoder.rewind(0)
    return np.array([decoder.step(int(token_id)).copy() for token_id in ids])


def assert_agree(ours: Floats, oracle: Oracle, num_tokens: int | None = None, drift: float | None = None) -> None:
    theirs = oracle.logits[:num_tokens]
    worst = np.abs(ours - theirs).max()
    assert worst <= TOLERANCE * oracle.logits.std()
    assert worst <= DRIFTS * (oracle.drift if drift is None else drift)
    assert np.array_equal(ours.argmax(axis=1), theirs.argmax(axis=1))


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_prefill_and_single_steps_match_transformers(
    make_hybrid: MakeHybrid, make_oracle: MakeOracle, index: int
) -> None:
    decoder, oracle = make_hybrid(SHAPES[index]).decoder(), make_oracle(SHAPES[index], LENGTH)
    assert_agree(score(decoder, oracle.ids, []), oracle)
    assert_agree(steps(decoder, oracle.ids), oracle)
    assert_agree(score(decoder, oracle.ids, CUTS[index % len(CUTS)]), oracle)


def test_every_cut_and_length_matches_transformers(make_hybrid: MakeHybrid, make_oracle: MakeOracle) -> None:
    decoder, oracle = make_hybrid(SHAPES[0]).decoder(), make_oracle(SHAPES[0], LENGTH)
    for cuts in CUTS:
        assert_agree(score(decoder, oracle.ids, cuts), oracle)
    for length in (1, 63, 64, 65):  # of a causal model these are the same positions
        assert_agree(score(decoder, oracle.ids[:length], []), oracle, length)


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 63, 64, 65, LENGTH, LONG])
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_every_length_of_every_shape_matches_transformers(
    make_hybrid: MakeHybrid, make_oracle: MakeOracle, index: int, length: int
) -> None:
    decoder, oracle = make_hybrid(SHAPES[index]).decoder(), make_oracle(SHAPES[index], length)
    drift = max(oracle.drift, make_oracle(SHAPES[index], LENGTH).drift)  # a single position has none
    if length == LENGTH:
        for cuts in CUTS:
            assert_agree(score(decoder, oracle.ids, cuts), oracle)
    for cuts in (list(range(512, length, 512)), list(range(64, length, 64)), list(range(37, length, 100))):
        assert_agree(score(decoder, oracle.ids, cuts), oracle, drift=drift)
    assert_agree(steps(decoder, oracle.ids), oracle, drift=drift)


def test_the_prefill_gives_the_last_positions_logits(make_hybrid: MakeHybrid) -> None:
    hybrid = make_hybrid(SHAPES[0])
    decoder, ids = hybrid.decoder(), hybrid.ids(150)
    expected = decoder.score(ids)
    for length in (1, 64, 65, 128, 150):
        decoder.rewind(0)
        assert decoder.prefill(ids[: length - 1], want_logits=False) is None if length > 1 else True
        last = decoder.prefill(ids[length - 1 : length], want_logits=True)
        assert last is not None and np.abs(last - expected[length - 1]).max() < 1e-4
        assert decoder.num_tokens == length


def test_bits_are_a_function_of_ids_and_modes_alone(make_hybrid: MakeHybrid) -> None:
    """Cuts on the grid, and any cut of what is computed in step mode, change no bit; nor does a step for a tail."""
    hybrid = make_hybrid(SHAPES[0])
    decoder, ids = hybrid.decoder(), hybrid.ids(300, seed=2)
    whole = score(decoder, ids, [])
    for cuts in ([64], [64, 128, 192, 256], [256], [256, 257, 299], [128, 270], list(range(256, 300))):
        assert np.array_equal(score(decoder, ids, cuts), whole), cuts
    decoder.rewind(0)
    decoder.prefill(ids[:256], want_logits=False)
    assert np.array_equal([decoder.step(int(token_id)).copy() for token_id in ids[256:]], whole[256:])


def test_the_spec_is_read_from_the_librarys_config(make_hybrid: MakeHybrid) -> None:
    shape = SHAPES[8]
    spec = read_config(make_hybrid(shape).folder, "x").spec
    assert spec.schedule == ("delta", "delta", "delta", "attention")
    assert spec.delta is not None and spec.attention.gated and spec.attention.qk_norm and spec.norm_offset == 1.0
    assert (spec.delta.num_key_heads, spec.delta.num_value_heads, spec.delta.key_dim) == (3, 6, 24)
