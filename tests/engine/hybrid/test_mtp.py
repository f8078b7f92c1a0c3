"""The MTP head against the library's modules: rows of a prompt, chains of drafts, what rejected drafts leave behind."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.model.decoder import Decoder
from support.mtp_oracle import MtpOracle
from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

MakeHybrid = Callable[[Shape], Hybrid]

SHAPES = (Shape(mtp=True), Shape(layers=8, heads=6, head_dim=64, hidden=96, value_heads=2, tied=True, mtp=True))
TOLERANCE = 1e-4  # per unit of the logits' standard deviation, as for the decoder
DRAFTS = 4


def draft(decoder: Decoder, token_ids: list[int]) -> Floats:
    """Logits of a chain of drafts that is given the tokens."""
    hidden, rows = decoder.hidden, []
    for token_id in token_ids:
        logits, hidden = decoder.draft_logits(hidden, token_id)
        rows.append(logits.copy())
    return np.array(rows)


def expected_drafts(oracle: MtpOracle, ids: Ids, token_ids: list[int]) -> Floats:
    """What a chain behind ids gives: every pair before it from true states, then the head's own outputs."""
    states = oracle.hidden(torch.from_numpy(ids))
    next_ids = [*ids[1:].tolist(), token_ids[0]]
    rows = []
    for token_id in [*token_ids[1:], None]:
        output, logits = oracle.run(states, torch.tensor(next_ids))
        rows.append(logits[-1].numpy())
        states = torch.cat((states, output[-1:]))
        next_ids.append(token_id)
    return np.array(rows)


def assert_close(ours: Floats, theirs: Floats) -> None:
    assert np.abs(ours - theirs).max() <= TOLERANCE * theirs.std()


@pytest.fixture(scope="module", params=SHAPES, ids=["4 layers", "8 layers"])
def hybrid(request: pytest.FixtureRequest, make_hybrid: MakeHybrid) -> Hybrid:
    return make_hybrid(request.param)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_drafts_behind_a_prompt_match_the_library(hybrid: Hybrid, length: int) -> None:
    decoder, ids = hybrid.decoder(drafts=DRAFTS, chunk=128), hybrid.ids(length, seed=length)
    for start in range(0, length, 128):
        decoder.prefill(ids[start : start + 128], want_logits=True)
    oracle, tokens = MtpOracle(hybrid.reference, hybrid.mtp), hybrid.ids(DRAFTS, seed=1).tolist()
    assert_close(draft(decoder, tokens), expected_drafts(oracle, ids, tokens))


def test_rejected_drafts_leave_no_trace_in_later_ones(hybrid: Hybrid) -> None:
    """Rounds of drafts, columns and rollbacks of every length, then the head as if only kept tokens had been."""
    decoder, ids = hybrid.decoder(drafts=DRAFTS), hybrid.ids(50, seed=2)
    decoder.prefill(ids, want_logits=True)
    oracle, known = MtpOracle(hybrid.reference, hybrid.mtp), ids
    for num_kept in (0, 1, 3, DRAFTS + 1, 2, 0, DRAFTS):
        guesses = hybrid.ids(DRAFTS + 1, seed=len(known)).tolist()
        assert_close(draft(decoder, guesses[:-1]), expected_drafts(oracle, known, guesses[:-1]))
        decoder.step_many(np.array(guesses))
        decoder.rollback(num_kept)
        known = np.concatenate([known, np.array(guesses[:num_kept], dtype=np.int64)])
    for token_id in hybrid.ids(40, seed=3):  # no draft for longer than pairs may wait
        decoder.step(int(token_id))
        known = np.append(known, token_id)
    image = decoder.snapshot()
    assert_close(draft(decoder, guesses), expected_drafts(oracle, known, guesses))
    decoder.rewind(0)
    decoder.restore(image)
    assert_close(draft(decoder, guesses), expected_drafts(oracle, known, guesses))


def test_no_drafts_planned_means_no_head(hybrid: Hybrid) -> None:
    decoder = hybrid.decoder()
    assert decoder.mtp is None and decoder.max_columns == 1
    assert hybrid.decoder(drafts=2).mtp is not None
