"""A reply is the same, token by token and logit by logit, whoever drafts, however much, and wherever it is cut."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from engine.model.decoder import Decoder
from engine.runtime.drafter import Drafter, NgramDrafter
from engine.runtime.speculate import Speculation
from support.drafters import HalfRightDrafter, OracleDrafter, RandomDrafter
from support.reply import ReplyRunner
from support.tiny_engine import TINY

PROMPT = [(17 * i) % 200 for i in range(60)] * 2  # said twice, so that a lookup has something to find
GREEDY = {"temperature": 0.0}
SAMPLED = {
    "temperature": 1.0, "seed": 11, "top_p": 0.98, "presence_penalty": 0.4, "frequency_penalty": 0.3,
    "repetition_penalty": 1.15, "logit_bias": {7: 3.0, 9: -4.0},
}  # fmt: skip
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
LENGTH = 80


@dataclass(frozen=True)
class Reply:
    """An unspeculated reply: its ids, and the logits behind every position that was computed."""

    ids: list[int]
    rows: list[bytes]


@pytest.fixture(scope="module")
def plain(dense: Decoder) -> dict[str, Reply]:
    replies = {}
    for name, sampling in SAMPLINGS.items():
        runner = make_runner(dense)
        ids = runner.run(PROMPT, LENGTH, sampling=sampling)
        replies[name] = Reply(ids, runner.rows(len(PROMPT) - 1, len(PROMPT) + LENGTH - 1))
    return replies


def make_runner(dense: Decoder, drafter: Drafter | None = None, num_drafts: int = 0, **options: object) -> ReplyRunner:
    dense.rewind(0)
    speculation = Speculation(drafter, num_drafts)
    return ReplyRunner(
        dense, vocab_size=TINY.vocab_size, context_limit=TINY.context_limit, speculation=speculation, **options
    )  # type: ignore[arg-type]


DRAFTERS: dict[str, Callable[[list[int]], Drafter]] = {
    "ngram": lambda _: NgramDrafter(),
    "random": lambda _: RandomDrafter(TINY.vocab_size),
    "right": lambda text: OracleDrafter(text, TINY.vocab_size),
    "wrong": lambda text: OracleDrafter(text, TINY.vocab_size, offset=1),
    "every-length": lambda text: HalfRightDrafter(text, TINY.vocab_size),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("drafter", "num_drafts"),
    [
        *((drafter, num_drafts) for drafter in ("ngram", "every-length") for num_drafts in (1, 3, 5)),
        *(("random", 5), ("right", 5), ("wrong", 3)),
    ],
)
def test_drafts_change_no_token_and_no_logit(
    dense: Decoder, plain: dict[str, Reply], drafter: str, num_drafts: int, sampling: str
) -> None:
    expected = plain[sampling]
    runner = make_runner(dense, DRAFTERS[drafter]([*PROMPT, *expected.ids]), num_drafts)
    assert runner.run(PROMPT, LENGTH, sampling=SAMPLINGS[sampling]) == expected.ids
    assert runner.rows(len(PROMPT) - 1, len(PROMPT) + LENGTH - 1) == expected.rows
    usage = runner.finished.usage
    assert usage.drafted_tokens == sum(usage.drafted_by_position) and len(usage.drafted_by_position) <= num_drafts
    assert usage.accepted_tokens == sum(usage.accepted_by_position)
    rate = usage.accepted_tokens / usage.drafted_tokens if usage.drafted_tokens else None
    if drafter == "right":
        assert rate == 1.0
    elif drafter == "wrong":
        assert rate == 0.0
    elif drafter == "every-length":
        assert rate is not None and 0.2 < rate < 0.8


def test_acceptance_is_counted_by_position(dense: Decoder, plain: dict[str, Reply]) -> None:
    text = [*PROMPT, *plain["sampled"].ids]
    runner = make_runner(dense, OracleDrafter(text, TINY.vocab_size), 3)
    runner.run(PROMPT, 11, sampling=SAMPLED)  # 1 behind the prompt, then rounds of 4, 4 and, with 1 draft left, 2
    usage = runner.finished.usage
    assert (usage.drafted_by_position, usage.accepted_by_position) == ([3, 2, 2], [3, 2, 2])
    runner = make_runner(dense, OracleDrafter(text, TINY.vocab_size, offset=1), 3)
    runner.run(PROMPT, 5, sampling=SAMPLED)  # 1, then rounds of 1 with 3, 2, 1 and no drafts
    assert runner.finished.usage.drafted_by_position == [3, 2, 1]
    assert runner.finished.usage.accepted_by_position == [0, 0, 0]


@pytest.mark.parametrize("step", [3, pytest.param(13, marks=pytest.mark.full)])
@pytest.mark.parametrize("drafter", ["none", "ngram", "every-length"])
def test_a_reply_cut_at_every_residue_of_the_grid_goes_on_with_the_same_bits(
    dense: Decoder, drafter: str, step: int
) -> None:
    total = 64 * step  # the step and 64 share no factor, so every residue is cut at
    whole, rows = run_whole(dense, total)
    runner = make_runner(dense, None if drafter == "none" else DRAFTERS[drafter]([*PROMPT, *whole]), 5)
    ids: list[int] = []
    residues = set()
    for cut in range(step, total + 1, step):
        residues.add((len(PROMPT) + len(ids)) % 64)
        ids += runner.run(PROMPT + ids, cut, output_start=len(PROMPT), sampling=SAMPLED)
        usage = runner.finished.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), len(ids)) == (len(PROMPT), cut)
    assert ids == whole and len(residues) == 64
    assert runner.rows(len(PROMPT) - 1, len(PROMPT) + total - 1) == rows


@pytest.mark.parametrize("drafter", ["none", "every-length"])
def test_a_cancelled_reply_goes_on_with_the_same_bits(dense: Decoder, drafter: str) -> None:
    whole, rows = run_whole(dense, 100)
    runner = make_runner(dense, None if drafter == "none" else DRAFTERS[drafter]([*PROMPT, *whole]), 5)
    ids: list[int] = []
    while len(ids) < 100:
        ids += runner.run(PROMPT + ids, 100, cancel_after=4, output_start=len(PROMPT), sampling=SAMPLED)
        assert runner.finished.reason == ("cancelled" if len(ids) < 100 else "length")
        assert runner.session.num_tokens == len(PROMPT) + len(ids) - 1
    assert ids == whole
    assert runner.rows(len(PROMPT) - 1, len(PROMPT) + 99) == rows


def run_whole(dense: Decoder, num_tokens: int) -> tuple[list[int], list[bytes]]:
    runner = make_runner(dense)
    ids = runner.run(PROMPT, num_tokens, sampling=SAMPLED)
    return ids, runner.rows(len(PROMPT) - 1, len(PROMPT) + num_tokens - 1)


@pytest.mark.parametrize("num_drafts", [1, 3, 5])
def test_a_stop_inside_a_round_leaves_what_single_steps_leave(
    dense: Decoder, plain: dict[str, Reply], num_drafts: int
) -> None:
    text = [*PROMPT, *plain["sampled"].ids]
    for place in (1, 2, 5, 8, 13):
        stop = plain["sampled"].ids[place]
        first = plain["sampled"].ids.index(stop)
        runner = make_runner(dense, OracleDrafter(text, TINY.vocab_size), num_drafts)
        new = runner.run(PROMPT, LENGTH, stop_token_ids=[stop], sampling=SAMPLED)
        assert new == plain["sampled"].ids[: first + 1] and runner.finished.reason == "stop"
        assert runner.session.num_tokens == len(PROMPT) + first, "the end itself is not computed"
        more = runner.run([*PROMPT, *new, 3, 4], 3, sampling=GREEDY)
        assert runner.finished.usage.cached_tokens == len(PROMPT) + first
        reference = make_runner(dense)
        reference.run(PROMPT, LENGTH, stop_token_ids=[stop], sampling=SAMPLED)
        assert reference.run([*PROMPT, *new, 3, 4], 3, sampling=GREEDY) == more


@pytest.mark.parametrize("max_new_tokens", range(1, 15))
def test_the_limit_inside_a_round(dense: Decoder, plain: dict[str, Reply], max_new_tokens: int) -> None:
    text = [*PROMPT, *plain["sampled"].ids]
    runner = make_runner(dense, OracleDrafter(text, TINY.vocab_size), 5)
    assert runner.run(PROMPT, max_new_tokens, sampling=SAMPLED) == plain["sampled"].ids[:max_new_tokens]
    assert runner.finished.reason == "length"
    assert runner.session.num_tokens == len(PROMPT) + max_new_tokens - 1


def test_the_window_is_usable_to_its_last_position(dense: Decoder) -> None:
    prompt = [5] * (TINY.context_limit - 9)
    fields = {"sampling": {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.4}}
    expected = make_runner(dense).run(prompt, 100, **fields)
    assert len(expected) == 9
    for drafter in (OracleDrafter([*prompt, *expected], 260), HalfRightDrafter([*prompt, *expected], 260)):
        assert make_runner(dense, drafter, 5).run(prompt, 100, **fields) == expected


def test_log_probabilities_do_not_depend_on_drafts(dense: Decoder, plain: dict[str, Reply]) -> None:
    def run(drafter: Drafter | None) -> list[object]:
        runner = make_runner(dense, drafter, 3)
        runner.run(PROMPT, 20, logprobs=2, sampling=SAMPLED)
        return [entry for event in runner.events for entry in (getattr(event, "logprobs", None) or [])]

    expected = run(None)
    assert len(expected) == 20
    assert run(HalfRightDrafter([*PROMPT, *plain["sampled"].ids], TINY.vocab_size)) == expected


@pytest.mark.full
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", ["ngram", "random", "every-length"])
def test_long_replies(dense: Decoder, drafter: str, sampling: str) -> None:
    length = TINY.context_limit - 20
    runner = make_runner(dense)
    whole = runner.run(PROMPT[:20], length, sampling=SAMPLINGS[sampling])
    rows = runner.rows(19, 19 + length)
    for num_drafts in (1, 3, 5):
        runner = make_runner(dense, DRAFTERS[drafter]([*PROMPT[:20], *whole]), num_drafts)
        assert runner.run(PROMPT[:20], length, sampling=SAMPLINGS[sampling]) == whole
        assert runner.rows(19, 19 + length) == rows


@pytest.mark.parametrize("num_columns", [1, 2, 4, 6])
def test_every_kept_length_equals_never_having_drafted(dense: Decoder, num_columns: int) -> None:
    ids = np.arange(num_columns) * 31 % TINY.vocab_size
    prompt = np.array(PROMPT[:70])
    for num_kept in range(num_columns + 1):
        dense.rewind(0)
        dense.prefill(prompt[:64], want_logits=False)
        dense.prefill(prompt[64:], want_logits=True)
        rows = dense.step_many(ids).copy()
        dense.rollback(num_kept)
        assert dense.num_tokens == 70 + num_kept
        after = [dense.step(token_id).copy() for token_id in (3, 1, 4)]
        dense.rewind(70)
        for column in range(num_kept):
            assert np.array_equal(dense.step(int(ids[column])), rows[column])
        assert all(np.array_equal(dense.step(t), row) for t, row in zip((3, 1, 4), after, strict=True))
