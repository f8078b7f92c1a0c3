"""Lookup and head: what they guess, from which counts, and what they leave behind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.generate import Sampling
from engine.runtime.drafter import MtpDrafter, NgramDrafter, find_continuation
from engine.runtime.sampler import Sampler
from engine.runtime.speculate import Speculation
from support.reply import ReplyRunner
from support.toy_executor import VOCAB, ToyExecutor


def slow_continuation(ids: list[int]) -> int | None:
    for length in (3, 2):
        for end in range(len(ids) - 1, length - 1, -1):
            if len(ids) > length and ids[end - length : end] == ids[-length:]:
                return end
    return None


@given(st.lists(st.integers(0, 3), max_size=40))
def test_lookup_finds_the_latest_longest_match(ids: list[int]) -> None:
    assert find_continuation(np.array(ids, dtype=np.int64)) == slow_continuation(ids)


@pytest.mark.parametrize(
    ("ids", "drafts"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], [4, 5, 6]),
        ([9, 2, 3, 7, 8, 1, 2, 3], [7, 8, 1]),  # two tokens match where three do not
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2]),  # the latest place
        ([1, 2, 3, 4, 2, 3, 5, 1, 2, 3], [4, 2, 3]),  # three before two, even if older
        ([7, 7, 7], [7]),
        ([1, 2, 3], []),
        ([1, 2], []),
        ([1], []),
    ],
)
def test_lookup_examples(ids: list[int], drafts: list[int]) -> None:
    sampler = Sampler(Sampling(), ids, len(ids), 10, None)
    assert NgramDrafter().draft(np.array(ids), sampler, 3) == drafts


SAMPLED = {"temperature": 1.0, "seed": 4, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3}


def make_runner(num_drafts: int, *, can_rewind: bool, **options: object) -> tuple[ReplyRunner, ToyExecutor]:
    toy = ToyExecutor(20_000, can_rewind=can_rewind)
    speculation = Speculation(MtpDrafter(toy), num_drafts) if num_drafts else None
    runner = ReplyRunner(
        toy, vocab_size=VOCAB, context_limit=20_000, speculation=speculation, num_checkpoints=20, **options
    )  # type: ignore[arg-type]
    return runner, toy


@pytest.mark.parametrize("can_rewind", [True, False])
def test_the_heads_guesses_change_nothing_and_mostly_hold(can_rewind: bool) -> None:
    prompt = list(range(20))
    expected, _ = make_runner(0, can_rewind=can_rewind)
    ids = expected.run(prompt, 400, sampling=SAMPLED)
    for num_drafts in (1, 2, 3, 4, 5):
        runner, _ = make_runner(num_drafts, can_rewind=can_rewind)
        assert runner.run(prompt, 400, sampling=SAMPLED) == ids
        assert runner.rows(19, 418) == expected.rows(19, 418)
        usage = runner.finished.usage
        first, *later = usage.accepted_by_position
        assert first / usage.drafted_by_position[0] > 0.5, "the same noise and counts, nearly the same logits"
        assert all(a >= b for a, b in zip([first, *later], later, strict=False))


def test_a_head_that_knows_the_logits_is_always_right() -> None:
    """Its guesses only hold if they are drawn with this place's noise and with counts that include its own guesses."""
    for penalties in (SAMPLED, {"temperature": 0.0, "presence_penalty": 2.0}):
        runner, toy = make_runner(5, can_rewind=False)
        toy.rest = 0.0
        runner.run(list(range(20)), 300, sampling=penalties)
        assert runner.finished.usage.accepted_by_position == runner.finished.usage.drafted_by_position


def test_a_head_with_bad_logits_drafts_less_and_fails_nothing() -> None:
    expected, _ = make_runner(0, can_rewind=False)
    ids = expected.run([1, 2, 3], 50, sampling=SAMPLED)
    runner, toy = make_runner(5, can_rewind=False)
    toy.drafts_before_nan = 2
    assert runner.run([1, 2, 3], 50, sampling=SAMPLED) == ids
    assert len(runner.finished.usage.drafted_by_position) == 2


@pytest.mark.parametrize("num_drafts", [0, 1, 3, 5])
def test_bad_logits_inside_a_round_fail_where_they_would_without_drafts(num_drafts: int) -> None:
    for place in range(3, 30):
        runner, toy = make_runner(num_drafts, can_rewind=False)
        toy.is_poisoned_at = place
        ids, message = runner.run_to_failure([1, 2, 3], 100, sampling=SAMPLED)
        assert len(ids) == place - 2 and f"position {place + 1} " in message
        assert runner.session.num_tokens == 0 and runner.session.checkpoint_positions == []


def test_no_draft_behind_a_stop() -> None:
    drafts = Speculation(NgramDrafter(), 5).propose(
        np.array([1, 2, 3, 4, 5, 6, 1, 2, 3]), Sampler(Sampling(), [1], 1, 10, None), 5, frozenset({5})
    )
    assert drafts == [4]
