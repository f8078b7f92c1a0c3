"""Going back on a model with recurrent state: against computing everything anew, and where checkpoints lie and stay."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.session import Session
from engine.state.checkpoints import Checkpoint, CheckpointRing, ModeSpan, append_mode, cut_modes
from support.toy_executor import VOCAB, ToyExecutor, ToyImage

LIMIT = 20_000


def as_ids(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def prefill(session: Session, ids: list[int], worth_keeping: list[int] | None = None, output_start: int = LIMIT) -> int:
    kept = session.sync(as_ids(ids))
    for _ in session.prefill(as_ids(ids), output_start, worth_keeping or []):
        pass
    return kept


def recomputed(ids: list[int], modes: tuple[ModeSpan, ...], *, modal: bool) -> NDArray[np.float32]:
    """Logits behind ids on a fresh executor that follows modes, or without them in one go."""
    executor = ToyExecutor(LIMIT, can_rewind=True, modal=modal)
    if not modal:
        modes = (ModeSpan(0, len(ids), "step"),)
    logits = None
    for span in modes:
        spanned = as_ids(ids[span.start : span.end])
        if span.mode == "step":
            for token_id in spanned:
                logits = executor.step(int(token_id))
        elif span.mode == "chunk":
            logits = executor.prefill(spanned, want_logits=True)
        else:
            for start in range(0, len(spanned)):
                logits = executor.prefill(spanned[start : start + 1], want_logits=True)
    assert logits is not None
    return logits


class Player:
    """Random requests on one session: edits, branches, repeats, cancels, drafts, poison."""

    def __init__(self, rng: random.Random, *, can_rewind: bool, modal: bool, num_checkpoints: int) -> None:
        self.rng = rng
        self.modal = modal
        self.executor = ToyExecutor(LIMIT, can_rewind=can_rewind, modal=modal)
        self.session = Session(self.executor, LIMIT, 128, num_checkpoints)
        self.texts: list[list[int]] = [[]]
        self.num_checkpoints = num_checkpoints

    def play(self, num_requests: int) -> None:
        for _ in range(num_requests):
            self.request()

    def request(self) -> None:
        rng, session = self.rng, self.session
        base = rng.choice(self.texts)
        text = base[: rng.choice([len(base), rng.randint(0, len(base))])]
        text = text + rng.choices(range(VOCAB), k=rng.choice([0, 1, 5, rng.randint(1, 200)]) or (not text))
        positions = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 3)))
        output_start = rng.choice([len(text), rng.randint(1, len(text))])
        kept = session.sync(as_ids(text))
        assert kept < len(text) and kept == session.num_tokens
        if rng.random() < 0.1:
            return session.pause()  # cancelled before anything was computed
        spans_left = rng.choice([LIMIT, LIMIT, rng.randint(0, 3)])
        for _ in session.prefill(as_ids(text), output_start, positions):
            spans_left -= 1
            if spans_left <= 0:
                break
        if session.num_tokens == len(text):
            self.check(text, session.logits)
            text = self.generate(text)
        if rng.random() < 0.7:
            session.pause()
        assert len(session.checkpoint_positions) <= (0 if self.executor.can_rewind else self.num_checkpoints)
        self.texts.append(text)
        if rng.random() < 0.03:
            session.drop()

    def generate(self, text: list[int]) -> list[int]:
        for _ in range(self.rng.randint(0, 12)):
            new = self.rng.choices(range(VOCAB), k=self.rng.randint(1, 6))
            if len(new) == 1:
                logits = self.session.advance(new[0])
                text = text + new
            else:
                rows = self.session.advance_many(new)
                num_kept = self.rng.randint(0, len(new))
                self.session.keep(num_kept)
                text = text + new[:num_kept]
                if num_kept == 0:
                    continue
                logits = rows[num_kept - 1]
            self.check(text, logits)
        return text

    def check(self, text: list[int], logits: NDArray[np.float32]) -> None:
        modes = self.session.modes
        assert modes[-1].end == len(text) == self.session.num_tokens
        if self.rng.random() < 0.2:
            assert np.array_equal(logits, recomputed(text, modes, modal=self.modal))


# can_rewind, modal; where blocks can be cut behind the fact, the modes must have the same bits
KINDS = [(True, False), (False, False), (False, True)]


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.sampled_from([0, 1, 2, 5, 50]))
def test_any_history_equals_computing_everything_anew(seed: int, kind: tuple[bool, bool], num_checkpoints: int) -> None:
    can_rewind, modal = kind
    Player(random.Random(seed), can_rewind=can_rewind, modal=modal, num_checkpoints=num_checkpoints).play(12)


@pytest.mark.full
def test_long_histories_equal_computing_everything_anew() -> None:
    for seed in range(60):
        can_rewind, modal = KINDS[seed % len(KINDS)]
        Player(random.Random(seed), can_rewind=can_rewind, modal=modal, num_checkpoints=seed % 7).play(80)


def make_session(num_checkpoints: int = 100, *, modal: bool = False) -> tuple[Session, ToyExecutor]:
    executor = ToyExecutor(LIMIT, can_rewind=False, modal=modal)
    return Session(executor, LIMIT, 128, num_checkpoints), executor


def numbers(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def test_a_prompt_leaves_checkpoints_on_the_grid() -> None:
    session, _ = make_session()
    prefill(session, numbers(9000), [70, 1000, 1001, 5000])
    assert session.checkpoint_positions == [64, 960, 4096, 4992, 8192, 8960]
    assert session.modes == (ModeSpan(0, 8960, "chunk"), ModeSpan(8960, 9000, "tail"))


@pytest.mark.parametrize(("length", "expected"), [(1, []), (64, [64]), (65, [64]), (128, [64, 128]), (129, [128])])
def test_the_prompts_end_can_be_asked_again(length: int, expected: list[int]) -> None:
    session, _ = make_session()
    prefill(session, numbers(length))
    assert session.checkpoint_positions == expected
    assert prefill(session, numbers(length)) == max([0, *(p for p in expected if p < length)])


def test_a_branch_goes_back_to_the_nearest_checkpoint() -> None:
    session, executor = make_session()
    text = numbers(1000)
    prefill(session, text, [300, 700])
    for position, kept in ((1000, 1000), (999, 960), (960, 960), (720, 640), (700, 640), (299, 256), (255, 0)):
        session, executor = make_session()
        prefill(session, text, [300, 700])
        executor.num_computed = 0
        branch = [*text[:position], (text[position] + 1) % VOCAB if position < 1000 else 1, *numbers(5, 1)]
        assert prefill(session, branch) == kept
        assert executor.num_computed == len(branch) - kept


def test_going_back_without_computing_loses_nothing() -> None:
    session, executor = make_session()
    text = numbers(1000)
    prefill(session, text, [300])
    assert session.sync(as_ids([*text[:300], 99])) == 256
    assert session.sync(as_ids([99])) == 0
    executor.num_computed = 0
    assert prefill(session, text) == 960 and executor.num_computed == 40, "the rows are still there"
    assert session.sync(as_ids([*text[:300], 99])) == 256
    session.pause()
    assert session.checkpoint_positions == [256, 960]
    session.advance(99)
    assert session.sync(as_ids(text)) == 256, "now they are not"


def test_a_hit_has_the_modes_and_the_bits_of_a_miss() -> None:
    text = numbers(1000)
    for position in range(100, 900, 37):
        branch = [*text[:position], *numbers(200, position)]
        warm, _ = make_session(modal=True)
        prefill(warm, text, [position])
        assert prefill(warm, branch) == position // 64 * 64
        cold, _ = make_session(modal=True)
        assert prefill(cold, branch) == 0
        assert warm.modes == cold.modes and np.array_equal(warm.logits, cold.logits)


def test_a_paused_reply_can_be_left_and_come_back_to() -> None:
    session, executor = make_session(modal=True)
    text = numbers(100)
    prefill(session, text)
    for token_id in numbers(30, 1):
        logits = session.advance(token_id).copy()
    session.pause()
    text += numbers(30, 1)
    assert session.checkpoint_positions == [64, 130]
    prefill(session, [*text, *numbers(50, 2)])
    executor.num_computed = 0
    again = session.sync(as_ids([*text, 5]))
    assert (again, executor.num_computed) == (130, 0)
    assert session.modes == (ModeSpan(0, 64, "chunk"), ModeSpan(64, 100, "tail"), ModeSpan(100, 130, "step"))
    assert np.array_equal(session.advance(5), recomputed([*text, 5], session.modes, modal=True))
    assert not np.array_equal(session.logits, logits)


def test_a_long_reply_leaves_checkpoints_of_its_own() -> None:
    session, _ = make_session()
    prefill(session, numbers(4000))
    for _ in range(30):
        session.advance_many([1, 2, 3, 4, 5, 6])
        session.keep(5)
    assert session.checkpoint_positions == [3968, 4100]
    for _ in range(8192 - 4150):
        session.advance(3)
    assert session.checkpoint_positions == [3968, 4100, 8192]


def test_rejected_drafts_leave_no_trace_and_no_checkpoint() -> None:
    session, _ = make_session()
    prefill(session, numbers(4090))
    session.advance_many([1, 2, 3, 4, 5, 6])
    session.keep(5)
    assert session.checkpoint_positions == [4032] and session.num_tokens == 4095
    session.advance_many([1, 1])
    session.keep(0)
    assert session.num_tokens == 4095
    assert np.array_equal(session.advance(7), recomputed([*numbers(4090), 1, 2, 3, 4, 5, 7], (), modal=False))


def test_cancelling_a_prefill_keeps_what_it_computed() -> None:
    session, _ = make_session()
    ids = as_ids(numbers(1000))
    session.sync(ids)
    spans = session.prefill(ids, 1000)
    next(spans)
    next(spans)
    spans.close()
    session.pause()
    assert session.checkpoint_positions == [session.num_tokens] and session.num_tokens >= 128
    assert session.sync(ids) == session.num_tokens


def test_a_poisoned_state_is_never_stored() -> None:
    session, executor = make_session()
    executor.is_poisoned_at = 500
    prefill(session, numbers(1000), [300, 700])
    session.pause()
    assert session.checkpoint_positions == [256]
    session.drop()
    assert session.checkpoint_positions == [] and session.num_tokens == 0
    executor.is_poisoned_at = None
    assert prefill(session, numbers(1000)) == 0


def test_a_model_that_can_rewind_takes_no_images() -> None:
    executor = ToyExecutor(LIMIT)
    session = Session(executor, LIMIT, 128, 50)
    prefill(session, numbers(1000), [300])
    session.pause()
    assert session.checkpoint_positions == []
    assert prefill(session, [*numbers(777), 1]) == 777 and executor.num_restored == 0


def test_only_the_last_named_positions_cut_the_prefill() -> None:
    session, _ = make_session()
    prefill(session, numbers(4000), [64 * index for index in range(1, 60)])
    assert session.checkpoint_positions == [64 * index for index in range(28, 60)] + [3968]


def fill(ring: CheckpointRing, positions: list[int]) -> None:
    for position in positions:
        if ring.make_room(position):
            assert ring.store(Checkpoint(ToyImage(position, 0), ()))


def test_a_full_ring_keeps_the_near_and_thins_the_far() -> None:
    ring = CheckpointRing(20)
    fill(ring, list(range(64, 262_144, 64)))
    assert len(ring.positions) == 20 and ring.num_bytes == 2000
    gaps = np.diff([0, *ring.positions])
    assert ring.positions[-1] == 262_080 and gaps[-1] <= 1024, "the newest is there and others close to it"
    assert gaps.max() <= 262_144 / 3 and gaps[:5].min() > gaps[-5:].max()


def test_the_ring_finds_forgets_and_refuses() -> None:
    ring = CheckpointRing(3)
    fill(ring, [100, 200, 300])
    assert not ring.make_room(300), "there is one already"
    assert [None if found is None else found.position for found in map(ring.best, (99, 100, 199, 999))] == [
        None, 100, 100, 300,
    ]  # fmt: skip
    ring.forget_beyond(200)
    assert ring.positions == [100, 200]
    assert not ring.store(Checkpoint(ToyImage(250, 0, finite=False), ())) and ring.positions == [100, 200]
    ring.clear()
    assert ring.positions == [] and not CheckpointRing(0).make_room(10)


def test_modes_join_and_are_cut() -> None:
    modes: list[ModeSpan] = []
    append_mode(modes, 0, 64, "chunk")
    append_mode(modes, 64, 128, "chunk")
    append_mode(modes, 128, 130, "tail")
    append_mode(modes, 130, 131, "step")
    assert modes == [ModeSpan(0, 128, "chunk"), ModeSpan(128, 130, "tail"), ModeSpan(130, 131, "step")]
    assert cut_modes(modes, 129) == [ModeSpan(0, 128, "chunk"), ModeSpan(128, 129, "tail")]
    assert cut_modes(modes, 128) == modes[:1] and cut_modes(modes, 0) == []
