"""Several columns at once, every accepted length, images of state: bitwise, in every KV format."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.errors import NumericalError
from engine.model.decoder import Decoder
from engine.state.image import HostImage
from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

MakeHybrid = Callable[[Shape], Hybrid]

SHAPE = Shape(heads=2, kv_heads=1, head_dim=64, mtp=True)
DRAFTS = 5
FORMATS = ("fp32", "bf16", "int8", "rk4v4-e8")


@pytest.fixture(scope="module")
def decoders(make_hybrid: MakeHybrid) -> dict[str, Decoder]:
    return {kv_format: make_hybrid(SHAPE).decoder(kv_format, drafts=DRAFTS) for kv_format in FORMATS}


def ids_of(length: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(0, SHAPE.vocab, length)


def start(decoder: Decoder, ids: Ids) -> None:
    decoder.rewind(0)
    decoder.prefill(ids, want_logits=True)


def steps(decoder: Decoder, ids: Ids) -> Floats:
    return np.array([decoder.step(int(token_id)).copy() for token_id in ids])


def assert_same_state(ours: HostImage, theirs: HostImage) -> None:
    assert (ours.position, ours.next_position) == (theirs.position, theirs.next_position)
    for name in ("recurrent", "conv", "hidden"):
        left, right = getattr(ours, name), getattr(theirs, name)
        if name == "hidden":  # what the MTP head is fed may come from a batch of rows: it changes guesses, no token
            torch.testing.assert_close(left, right, atol=1e-4, rtol=0)
        else:
            assert torch.equal(left, right), name


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 63, 64, 100])
def test_several_columns_have_the_bits_of_single_steps(
    decoders: dict[str, Decoder], kv_format: str, num_tokens: int
) -> None:
    decoder, ids = decoders[kv_format], ids_of(num_tokens, seed=1)
    fed = ids_of(12, seed=2)
    start(decoder, ids)
    expected, end = steps(decoder, fed), decoder.snapshot()
    for width in (1, 2, DRAFTS + 1):
        start(decoder, ids)
        rows = []
        for first in range(0, len(fed), width):
            rows.append(decoder.step_many(fed[first : first + width]).copy())
            decoder.rollback(len(rows[-1]))
        assert np.array_equal(np.concatenate(rows), expected)
        assert_same_state(decoder.snapshot(), end)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("num_kept", range(DRAFTS + 2))
def test_a_rollback_to_any_length_leaves_no_trace(decoders: dict[str, Decoder], kv_format: str, num_kept: int) -> None:
    decoder, ids = decoders[kv_format], ids_of(70, seed=3)
    fed, after = ids_of(DRAFTS + 1, seed=4), ids_of(9, seed=5)
    start(decoder, ids)
    kept_rows = steps(decoder, fed[:num_kept])
    state, expected = decoder.snapshot(), steps(decoder, after)
    start(decoder, ids)
    rows = decoder.step_many(fed).copy()
    decoder.rollback(num_kept)
    assert decoder.num_tokens == 70 + num_kept
    assert num_kept == 0 or np.array_equal(rows[:num_kept], kept_rows)
    assert_same_state(decoder.snapshot(), state)
    assert np.array_equal(steps(decoder, after), expected)


def test_rounds_with_drafts_give_the_bits_of_plain_steps(decoders: dict[str, Decoder]) -> None:
    """Draft, feed, keep a varying number, over a hundred tokens and a checkpoint's worth of grid edges."""
    decoder, ids, fed = decoders["bf16"], ids_of(61, seed=6), ids_of(100, seed=7)
    start(decoder, ids)
    expected = steps(decoder, fed)
    start(decoder, ids)
    rng, done, rows = np.random.default_rng(8), 0, []
    while done < len(fed):
        width = min(int(rng.integers(1, DRAFTS + 2)), len(fed) - done)
        hidden = decoder.hidden
        for token_id in fed[done : done + width - 1]:
            _, hidden = decoder.draft_logits(hidden, int(token_id))
        wrong = ids_of(DRAFTS + 1 - width, seed=done)
        logits = decoder.step_many(np.concatenate([fed[done : done + width], wrong]))
        rows.append(logits[:width].copy())
        decoder.rollback(width)
        done += width
    assert np.array_equal(np.concatenate(rows), expected)


@pytest.mark.parametrize("kv_format", ["fp32", "rk4v4-e8"])
def test_an_image_brings_its_position_back_from_behind_and_from_ahead(
    decoders: dict[str, Decoder], kv_format: str
) -> None:
    decoder, ids = decoders[kv_format], ids_of(200, seed=9)
    decoder.rewind(0)
    empty = decoder.snapshot()
    decoder.prefill(ids[:128], want_logits=False)
    early = decoder.snapshot()
    expected = decoder.score(ids[128:])[-1]
    late, after = decoder.snapshot(), steps(decoder, ids[:5])
    assert early.position == 128 and early.num_bytes > 0 and early.is_finite()
    for _ in range(2):
        decoder.restore(early)
        assert decoder.num_tokens == 128
        again = decoder.prefill(ids[128:], want_logits=True)
        assert again is not None and np.array_equal(again, expected)
        decoder.restore(early)
        decoder.restore(late)  # nothing was computed in between, so its keys and values are in place
        assert np.array_equal(steps(decoder, ids[:5]), after)
    decoder.restore(empty)
    assert decoder.num_tokens == 0 and empty.num_bytes == early.num_bytes
    assert np.array_equal(decoder.score(ids)[-1], expected)


def test_an_image_beyond_an_overwritten_row_is_a_bug(decoders: dict[str, Decoder]) -> None:
    decoder, ids = decoders["fp32"], ids_of(150, seed=10)
    start(decoder, ids[:64])
    early = decoder.snapshot()
    decoder.prefill(ids[64:], want_logits=False)
    late = decoder.snapshot()
    decoder.restore(early)
    decoder.step_many(ids[:3])
    decoder.rollback(0)
    with pytest.raises(AssertionError, match="the timeline holds 64 rows"):
        decoder.restore(late)


def test_a_rewind_reaches_where_it_stands_or_the_start(decoders: dict[str, Decoder]) -> None:
    decoder, ids = decoders["fp32"], ids_of(100, seed=11)
    start(decoder, ids)
    expected = decoder.step(3).copy()
    assert not decoder.can_rewind
    assert decoder.rewind(101) == 101 and decoder.rewind(50) == 0 and decoder.num_tokens == 0
    start(decoder, ids)
    decoder.step_many(ids[:2])
    assert decoder.rewind(0) == 0  # a new start is legal in an open round
    start(decoder, ids)
    assert np.array_equal(decoder.step(3), expected)


def test_a_poisoned_pass_leaves_an_empty_sequence(make_hybrid: MakeHybrid) -> None:
    """Keys that cannot be encoded end the pass before half of a state could be taken for a whole one."""
    decoder, ids = make_hybrid(SHAPE).decoder("rk4v4-e8"), ids_of(70, seed=12)
    expected = decoder.score(ids)
    decoder.rewind(0)
    decoder.prefill(ids, want_logits=False)
    image = decoder.snapshot()
    assert image.recurrent is not None
    poisoned = replace(image, recurrent=torch.full_like(image.recurrent, torch.nan))
    assert image.is_finite() and not poisoned.is_finite()
    decoder.prefill(ids, want_logits=False)
    ahead = decoder.snapshot()
    decoder.restore(poisoned)
    with pytest.raises(NumericalError, match=r"positions 70 \.\. 70"):
        decoder.step(1)
    assert decoder.num_tokens == 0
    with pytest.raises(AssertionError, match="the timeline holds 70 rows"):
        decoder.restore(ahead)
    assert np.array_equal(decoder.score(ids), expected)
