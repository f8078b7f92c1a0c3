"""The guard against runaway repetition: exactly its formula, blind to rounds and cuts, silent on real text."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.runtime.repetition import RepetitionGuard
from engine.runtime.speculate import Speculation
from support.drafters import OracleDrafter
from support.reply import ReplyRunner
from support.toy_executor import VOCAB, ToyExecutor

ROOT = Path(__file__).resolve().parents[3]


def first_trigger(ids: list[int]) -> int | None:
    """How many ids it takes."""
    guard = RepetitionGuard()
    for count, token_id in enumerate(ids, 1):
        if guard.feed(token_id):
            return count
    return None


def required(period: int) -> int:
    return max(1024, min(64 * period, 4096))


def block(period: int, seed: int = 0) -> list[int]:
    """A block that repeats with no shorter period."""
    return [1_000_000 + seed, *np.random.default_rng(seed).integers(0, 5000, period - 1).tolist()]


@pytest.mark.parametrize("period", [1, 2, 7, 16, 17, 63, 64, 65, 300, 511, 512])
@pytest.mark.parametrize("lead", [0, 1, 700])
def test_it_fires_at_the_id_the_formula_says(period: int, lead: int) -> None:
    text = np.random.default_rng(5).integers(5000, 9000, lead).tolist() + block(period) * (9000 // period + 1)
    assert first_trigger(text) == lead + required(period)


def test_a_longer_block_or_one_change_is_no_loop() -> None:
    assert first_trigger(block(513) * 20) is None
    text = block(40) * 60
    text[2000] = 7
    assert first_trigger(text) is None
    assert first_trigger([*text, *block(40) * 80]) == 2001 + required(40)


def test_random_text_and_counted_lines_never_fire() -> None:
    assert first_trigger(np.random.default_rng(0).integers(0, 4, 20_000).tolist()) is None
    rows = [token for row in range(2000) for token in (11, 12, row % 10, 13, row // 10 % 10, 14, row // 100, 15)]
    assert first_trigger(rows) is None


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "services" / "gateway").rglob("*.py"))),
        "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))),
        "\n".join(f"| {n:>5} | {n * n:>9} | 0x{n:04x} | 0.0 | 0.0 |" for n in range(1500)),
        "static const unsigned char zeros[512] = {\n" + ("    " + "0x00, " * 16 + "\n") * 32 + "};\n",
        "=" * 400 + "\n" + "-" * 400 + "\n" + " " * 900 + "\n" + "| --- " * 30,
        "\n".join(f"        assert add({a}, {b}) == {a + b}" for a in range(40) for b in range(40)),
    ],
    ids=["source", "documents", "table", "zeros", "rules", "asserts"],
)
def test_what_people_ask_for_never_fires(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "models" / "tiny-hybrid" / "tokenizer.json"))
    assert first_trigger(tokenizer.encode(text).ids) is None


@pytest.mark.parametrize("text", ["the ", "I will now fix the bug in the parser.\n", "    return None\n\n"])
def test_a_loop_of_text_fires(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "models" / "tiny-hybrid" / "tokenizer.json"))
    assert first_trigger(tokenizer.encode("Let me think.\n" + text * 1100).ids) is not None


def test_a_guard_that_starts_in_the_middle_agrees() -> None:
    text = block(90, 1)[:50] + block(60) * 100
    whole = first_trigger(text)
    assert whole == 50 + required(60)
    for cut in (1, 30, 51, 1000, whole - 1):
        guard = RepetitionGuard(text[:cut])
        assert not guard.triggered
        assert next(n for n, token_id in enumerate(text[cut:], cut + 1) if guard.feed(token_id)) == whole
    assert RepetitionGuard(text[:whole]).triggered
    long = block(3) * 100_000
    assert RepetitionGuard(long).triggered


LOOP = {"sampling": {"temperature": 0.0, "logit_bias": {3: 100.0}}}


@pytest.mark.parametrize("num_drafts", [0, 5])
def test_a_reply_that_repeats_itself_is_ended_and_says_so(num_drafts: int) -> None:
    drafter = OracleDrafter([3] * 5000, VOCAB) if num_drafts else None

    def run(prompt: list[int], limit: int, *, guards_repetition: bool = True, **fields: int) -> ReplyRunner:
        runner = ReplyRunner(
            ToyExecutor(5000), vocab_size=VOCAB, context_limit=5000, speculation=Speculation(drafter, num_drafts),
            guards_repetition=guards_repetition,
        )  # fmt: skip
        runner.run(prompt, limit, **fields, **LOOP)
        return runner

    ended = run([1, 2], 3000).finished
    assert (ended.reason, ended.guard, ended.usage.completion_tokens) == ("stop", "repetition", 1024)
    below = run([1, 2], 1024).finished
    assert (below.reason, below.guard) == ("length", None), "a limit at the same token comes first"
    resumed = run([1, 2, *[3] * 1000], 3000, output_start=2).finished
    assert (resumed.guard, resumed.usage.completion_tokens) == ("repetition", 1024)
    over = run([1, 2, *[3] * 1024], 3000, output_start=2)
    assert (over.finished.guard, over.finished.usage.completion_tokens) == ("repetition", 1024)
    prompt_only = run([1, 2, *[3] * 1024], 100).finished
    assert (prompt_only.reason, prompt_only.guard) == ("length", None), "what the user wrote does not count"
    unguarded = run([1, 2], 3000, guards_repetition=False).finished
    assert (unguarded.reason, unguarded.guard, unguarded.usage.completion_tokens) == ("length", None, 3000)
