"""Stop strings and reply text do not depend on how the engine groups its tokens; the oracle looks at the whole text."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.generate import TokenLogprob, Tokens
from gateway.reply import ReplyDelta
from gateway.text.model_text import ModelText
from gateway.text.reply_text import ReplyText
from gateway.text.stop import StopMatcher

letters = st.text(alphabet="abc", max_size=25)
stop_strings = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def oracle(text: str, stops: list[str]) -> str:
    starts = [text.find(stop) for stop in stops if stop in text]
    return text[: min(starts)] if starts else text


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.feed(piece) for piece in pieces]
    return [*shown, matcher.finish()], matcher.matched


@given(letters, stop_strings, st.integers())
def test_earliest_match_wins_however_the_text_arrives(text: str, stops: list[str], seed: int) -> None:
    cuts = random.Random(seed)
    pieces, rest = [], text
    while rest:
        count = cuts.randint(1, 4)
        pieces.append(rest[:count])
        rest = rest[count:]
    shown, matched = run(pieces, stops)
    assert "".join(shown) == oracle(text, stops)
    assert (matched is not None) == any(stop in text for stop in stops)
    assert matched == run(list(text), stops)[1]


@given(letters, stop_strings)
def test_nothing_shown_is_taken_back_and_little_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for index, character in enumerate(text):
        shown += matcher.feed(character)
        assert oracle(text, stops).startswith(shown)
        if matcher.matched is None:
            held = index + 1 - len(shown)
            assert held < max(map(len, stops), default=1)


@pytest.mark.parametrize(
    ("pieces", "stops", "content"),
    [
        (["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC"),
        (["ABC", "DEF"], ["DEFGHIJ"], "ABCDEF"),
        (["one two", " three"], ["three", " two"], "one"),
        (["a <to", "dayEND"], ["END"], "a <today"),
        (["x <tool", "box> y"], ["<toolbox>"], "x "),
        (["abc"], ["bc", "abcd"], "a"),
        (["abc", "d"], ["bc", "abcd"], ""),
        (["naïve 🌍"], ["🌍"], "naïve "),
        (["stop"], ["stop"], ""),
    ],
)
def test_reported_cases(pieces: list[str], stops: list[str], content: str) -> None:
    shown, _ = run(pieces, stops)
    assert "".join(shown) == content


def feed_all(
    text: ModelText, groups: list[list[int]], stops: list[str], *, choices: bool
) -> tuple[str, list[str], int]:
    reply = ReplyText(text.tokenizer, stop_ids=frozenset({2}), stops=stops, with_choices=choices)
    deltas: list[ReplyDelta | None] = []
    for group in groups:
        logprobs = [TokenLogprob(-i / 100, [(i, -i / 100)]) for i in group] if choices else None
        deltas.append(reply.feed(Tokens(group, logprobs)))
    deltas.append(reply.finish())
    shown = [delta for delta in deltas if delta is not None]
    tokens = [choice.text.decode("utf-8", "replace") for delta in shown for choice in delta.choices]
    return "".join(delta.text for delta in shown), tokens, reply.num_tokens


@given(st.text(max_size=30), st.sampled_from([[], ["e"], ["the", "é"], ["abc"]]), st.integers(), st.booleans())
def test_grouping_of_tokens_changes_nothing(
    text: ModelText, content: str, stops: list[str], seed: int, choices: bool
) -> None:
    ids = text.tokenizer.encode_plain([content])[0]
    cuts = random.Random(seed)
    groups, rest = [], ids
    while rest:
        count = cuts.randint(1, 6)
        groups.append(rest[:count])
        rest = rest[count:]
    single = feed_all(text, [[token_id] for token_id in ids], stops, choices=choices)
    assert feed_all(text, groups, stops, choices=choices) == single
    assert single[0] == oracle(content, stops)


def test_logprobs_cover_the_tokens_that_are_shown(text: ModelText) -> None:
    ids = text.tokenizer.encode_plain(["the fox STOP the dog"])[0]
    shown, tokens, num_tokens = feed_all(text, [ids, [2]], ["STOP"], choices=True)
    assert shown == "the fox "
    assert "".join(tokens).startswith("the fox") and "dog" not in "".join(tokens)
    assert num_tokens < len(ids)


def test_the_end_token_is_neither_shown_nor_listed(text: ModelText) -> None:
    ids = text.tokenizer.encode_plain(["fox"])[0]
    assert feed_all(text, [[*ids, 2]], [], choices=True)[:2] == (
        "fox",
        [text.tokenizer.token_bytes[i].decode() for i in ids],
    )
