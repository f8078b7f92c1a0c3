"""The decoder against transformers on the same file: whole prefill, every cutting, single steps, rewind, precision."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.model.decoder import Decoder
from support.tiny_engine import TINY

# fp32 against fp32: what two orders of summation differ by, per unit of the logits' standard deviation.
FP32_TOLERANCE = 1e-4
# bf16 keys and values have 8 significant bits; on random weights that moves a logit by a few hundredths of its spread.
BF16_TOLERANCE = 0.08

Ids = NDArray[np.int64]


def random_ids(length: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, TINY.vocab_size, length)


def oracle(reference: torch.nn.Module, ids: Ids) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = reference(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


def last_logits(decoder: Decoder, ids: Ids, cuts: list[int]) -> NDArray[np.float32]:
    """Logits of the last id, prefilled in the spans between cuts."""
    decoder.rewind(0)
    logits = None
    for start, end in pairwise([0, *cuts, len(ids)]):
        logits = decoder.prefill(ids[start:end], want_logits=end == len(ids))
    assert logits is not None
    return logits.copy()


def assert_close(ours: NDArray[np.float32], theirs: NDArray[np.float32], tolerance: float) -> None:
    assert np.abs(ours - theirs).max() <= tolerance * theirs.std()


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 63, 64, 65, 200, 1000])
def test_whole_prefill_matches_transformers(
    decoders: dict[str, Decoder], reference: torch.nn.Module, length: int
) -> None:
    ids = random_ids(length)
    expected = oracle(reference, ids)[-1]
    ours = last_logits(decoders["fp32"], ids, list(range(512, length, 512)))
    assert_close(ours, expected, FP32_TOLERANCE)
    assert ours.argmax() == expected.argmax()


@pytest.mark.parametrize("cuts", [[1], [64, 128], [37, 128], [3, 199], [64, 65, 66], list(range(8, 200, 8))])
def test_every_cutting_matches_transformers(
    decoders: dict[str, Decoder], reference: torch.nn.Module, cuts: list[int]
) -> None:
    ids = random_ids(200, seed=1)
    expected = oracle(reference, ids)[-1]
    ours = last_logits(decoders["fp32"], ids, cuts)
    assert_close(ours, expected, FP32_TOLERANCE)
    assert ours.argmax() == expected.argmax()


def test_single_steps_match_transformers_at_every_position(
    decoders: dict[str, Decoder], reference: torch.nn.Module
) -> None:
    ids = random_ids(130, seed=2)
    expected = oracle(reference, ids)
    decoder = decoders["fp32"]
    decoder.rewind(0)
    for position, token_id in enumerate(ids):
        ours = decoder.step(int(token_id))
        assert_close(ours, expected[position], FP32_TOLERANCE)
        assert ours.argmax() == expected[position].argmax()


def test_bf16_cache_stays_within_its_tolerance(decoders: dict[str, Decoder], reference: torch.nn.Module) -> None:
    ids = random_ids(300, seed=3)
    expected = oracle(reference, ids)
    decoder = decoders["bf16"]
    decoder.rewind(0)
    decoder.prefill(ids[:256], want_logits=False)
    for position in range(256, 300):
        assert_close(decoder.step(int(ids[position])), expected[position], BF16_TOLERANCE)


@pytest.mark.parametrize("kv_format", ["fp32", "bf16"])
def test_prefill_gives_the_same_bits_however_it_is_cut(decoders: dict[str, Decoder], kv_format: str) -> None:
    if not library_is_row_invariant():
        pytest.skip("this host's matrix library adds up a row differently depending on the rows beside it")
    decoder, ids = decoders[kv_format], random_ids(300, seed=4)
    whole = last_logits(decoder, ids, [256])
    for cuts in (
        [64, 128, 192, 256],
        [64, 256],
        [5, 64, 256],
        [256, 299],
        [256, 297, 299],
        [63, 64, 255, 256],
        list(range(1, 300, 37)),
    ):
        assert np.array_equal(last_logits(decoder, ids, cuts), whole), cuts


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 65, 129])
def test_rewind_leaves_no_trace(decoders: dict[str, Decoder], kept: int) -> None:
    decoder, ids = decoders["bf16"], random_ids(140, seed=5)
    expected = last_logits(decoder, ids, [kept] if kept else [])
    stepped = decoder.step(7).copy()
    for token_id in random_ids(60, seed=6):
        decoder.step(int(token_id))
    assert decoder.rewind(kept) == kept and decoder.num_tokens == kept
    again = decoder.prefill(ids[kept:], want_logits=True)
    assert again is not None and np.array_equal(again, expected)
    assert np.array_equal(decoder.step(7), stepped)


def test_the_window_is_usable_to_its_last_position(decoders: dict[str, Decoder], reference: torch.nn.Module) -> None:
    ids = random_ids(TINY.context_limit, seed=7)
    decoder = decoders["fp32"]
    last_logits(decoder, ids[: TINY.context_limit - 3], [512])
    for token_id in ids[TINY.context_limit - 3 :]:
        logits = decoder.step(int(token_id))
    assert_close(logits, oracle(reference, ids)[-1], FP32_TOLERANCE)


def library_is_row_invariant() -> bool:
    """Whether torch's product gives a row the same bits in batches of 16 and more, for this model's shapes."""
    generator = torch.Generator().manual_seed(0)
    dims, hidden, inner = TINY.attention, TINY.hidden_size, TINY.intermediate_size
    shapes = [(hidden, dims.num_q_rows + 2 * dims.num_kv_rows), (hidden, 2 * inner), (inner, hidden)]
    for num_in, num_out in shapes:
        x, w = torch.randn(256, num_in, generator=generator), torch.randn(num_in, num_out, generator=generator)
        whole = x @ w
        if not all(torch.equal(x[s : s + n] @ w, whole[s : s + n]) for s in (0, 5, 64) for n in (16, 17, 37, 64, 128)):
            return False
    return True
