"""When drafting is switched off and on again, from made-up clocks; what settings choose; how many checkpoints fit."""

import logging
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from contracts.errors import SetupError
from contracts.generate import Sampling
from engine.machine import Reading
from engine.runtime.governor import Governor
from engine.runtime.sampler import Sampler
from engine.settings import EngineSettings, read_config
from engine.speculation import choose_drafts, count_checkpoints, make_speculation
from support.tiny_engine import TINY
from support.toy_executor import ToyExecutor


class Clock:
    """Rounds of a machine where a plain token costs 10 ms and a drafted round its own price."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self.num_tokens = 0
        self.num_drafted_rounds = 0

    def run(self, num_rounds: int, drafted_ms: float, tokens_a_round: float) -> None:
        whole = 0.0
        for _ in range(num_rounds):
            if self.governor.wants_drafts():
                whole += tokens_a_round
                tokens = max(1, int(whole))
                whole -= tokens
                self.num_drafted_rounds += 1
                self.governor.record(3, tokens, drafted_ms / 1e3)
            else:
                tokens = 1
                self.governor.record(0, 1, 10 / 1e3)
            self.num_tokens += tokens


def test_it_drafts_while_that_is_faster() -> None:
    clock = Clock(Governor())
    clock.run(2000, drafted_ms=15, tokens_a_round=2.5)
    assert clock.num_drafted_rounds > 1900, "all but the probes"


def test_it_stops_when_a_token_costs_more_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine")
    clock = Clock(Governor())
    clock.run(20, drafted_ms=40, tokens_a_round=2.0)
    assert clock.num_drafted_rounds == 16
    assert caplog.messages == [
        "no drafts for 256 tokens: 20.00 ms a token with them (2.00 tokens a round), 10.00 ms without"
    ]
    clock.run(20_000, drafted_ms=40, tokens_a_round=2.0)
    assert clock.num_drafted_rounds / 20_020 < 0.01, "trials become rare"
    assert len(caplog.messages) < 12


def test_it_comes_back_when_the_text_allows() -> None:
    clock = Clock(Governor())
    clock.run(300, drafted_ms=40, tokens_a_round=2.0)
    before = clock.num_drafted_rounds
    clock.run(2000, drafted_ms=20, tokens_a_round=3.5)
    assert clock.num_drafted_rounds - before > 1400


def test_no_judgement_before_both_costs_are_known() -> None:
    governor = Governor()
    assert not governor.wants_drafts()
    for _ in range(4):
        governor.record(0, 1, 0.01)
    assert governor.wants_drafts()
    for _ in range(15):
        governor.record(3, 1, 1.0)
        assert governor.wants_drafts(), "sixteen rounds are a trial"
    governor.record(3, 1, 1.0)
    assert not governor.wants_drafts()


@pytest.mark.parametrize(
    ("fields", "mtp_layers", "shares_columns", "label"),
    [
        ({}, 0, False, "none"),
        ({}, 0, True, "ngram-3"),
        ({}, 1, True, "mtp-3"),
        ({}, 1, False, "none"),
        ({"drafts": "5"}, 1, True, "mtp-5"),
        ({"drafts": "0"}, 1, True, "none"),
        ({"speculation": "off", "drafts": "4"}, 1, True, "none"),
        ({"speculation": "ngram"}, 1, False, "ngram-3"),
        ({"speculation": "mtp", "drafts": "1"}, 1, False, "mtp-1"),
        ({"speculation": "mtp", "drafts": "0"}, 1, False, "none"),
    ],
)
def test_what_settings_choose(fields: dict[str, str], mtp_layers: int, shares_columns: bool, label: str) -> None:
    spec = replace(TINY, mtp_layers=mtp_layers)
    assert choose_drafts(EngineSettings(**fields), spec, shares_columns=shares_columns).label == label


def test_auto_gives_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine")
    choose_drafts(EngineSettings(), TINY, shares_columns=False)
    assert caplog.messages == [
        "speculation off: this executor computes columns one by one, so a draft would save no time"
    ]


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(SetupError, match="ENGINE_SPECULATION is mtp, but tiny-engine has no MTP head"):
        choose_drafts(EngineSettings(speculation="mtp"), TINY, shares_columns=True)


@pytest.mark.parametrize("text", ["6", "-1", "many", "1.0"])
def test_drafts_beyond_the_range_are_refused(text: str) -> None:
    with pytest.raises(SetupError, match=f"ENGINE_DRAFTS='{text}'"):
        read_config({"ENGINE_DRAFTS": text})


@pytest.mark.parametrize(("speculation", "expected"), [("ngram", 3), ("auto", 0)])
def test_only_what_was_not_asked_for_is_switched_off(speculation: Literal["ngram", "auto"], expected: int) -> None:
    choice = choose_drafts(EngineSettings(speculation=speculation), TINY, shares_columns=True)
    working = make_speculation(choice, ToyExecutor(100))
    for _ in range(20):
        working.record(0, 1, 0.001)
    for _ in range(20):
        working.record(3, 1, 100.0)
    ids = [1, 2, 3, 4, 5, 1, 2]
    assert len(working.propose(np.array(ids), Sampler(Sampling(), ids, 7, 10, None), 5, frozenset())) == expected


@pytest.mark.parametrize(
    ("budget", "available", "count", "text"),
    [
        (None, Reading(4000, "memory available"), 10, "a quarter of the memory available"),
        (None, Reading(10**9, "memory available"), 24, "no use for 8192 positions"),  # one for 1,024 positions and 16
        (None, None, 1, "one image"),
        (1000, Reading(10**9, "x"), 10, "ENGINE_CHECKPOINT_BYTES"),
        (99, None, 0, "every edit of a prompt computes it anew"),
    ],
)
def test_checkpoints_fit_their_budget(
    budget: int | None, available: Reading | None, count: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "engine")
    toy = ToyExecutor(100, can_rewind=False)  # an image has 100 bytes
    assert count_checkpoints(toy, 8192, budget, available) == count
    assert text in caplog.messages[0] and "of 100 bytes" in caplog.messages[0]


def test_a_model_that_can_rewind_gets_no_checkpoints() -> None:
    assert count_checkpoints(ToyExecutor(100), 8192, None, None) == 0
