"""Byte tables and incremental decoding against the tokenizers library and against Python's own decoder."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ServiceError, SetupError
from gateway.text.detokenizer import Detokenizer
from gateway.text.model_text import ModelText
from gateway.text.tokenizer import TextTokenizer
from support.text_model import NOT_SPECIAL, SPECIAL, make_tokenizer

TOKENIZER = make_tokenizer()
FILE = json.loads(TOKENIZER.to_str())
OURS = TextTokenizer(json.dumps(FILE).encode())
PLAIN_IDS = sorted(set(range(TOKENIZER.get_vocab_size())) - set(OURS.control_ids.values()))
ids_of_plain_tokens = st.lists(st.sampled_from(PLAIN_IDS), max_size=40)


def split_randomly(ids: list[int], seed: int) -> list[list[int]]:
    cuts = random.Random(seed)
    parts: list[list[int]] = []
    while ids:
        count = cuts.randint(1, 5)
        parts, ids = [*parts, ids[:count]], ids[count:]
    return parts


@given(ids_of_plain_tokens, st.integers())
def test_any_split_gives_the_decoding_of_the_whole(ids: list[int], seed: int) -> None:
    detokenizer = Detokenizer(OURS.token_bytes)
    pieces = [detokenizer.feed(part) for part in split_randomly(ids, seed)]
    whole = TOKENIZER.decode(ids, skip_special_tokens=False)
    # The library shows an unfinished last character as U+FFFD, we hold it back.
    assert whole == "".join(pieces) or whole == "".join(pieces) + "\ufffd"


@given(st.lists(st.integers(0, 255), max_size=30), st.integers())
def test_bytes_that_are_no_characters_become_replacements(content: list[int], seed: int) -> None:
    table = [bytes([value]) for value in range(256)]
    detokenizer = Detokenizer(table)
    pieces = "".join(detokenizer.feed(part) for part in split_randomly(content, seed))
    whole = bytes(content).decode("utf-8", "replace")
    assert whole == pieces or whole == pieces + "\ufffd"


@given(st.text())
def test_characters_are_never_cut(content: str) -> None:
    ids = OURS.encode_plain([content])[0]
    detokenizer = Detokenizer(OURS.token_bytes)
    pieces = [detokenizer.feed((token_id,)) for token_id in ids]
    assert "".join(pieces) == content
    assert "\ufffd" in content or not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_at_the_end_is_withheld() -> None:
    detokenizer = Detokenizer([b"ok ", b"\xf0\x9f", b"\x8c"])
    assert detokenizer.feed([0, 1, 2]) == "ok "


def test_hidden_tokens_show_nothing_and_other_control_tokens_their_text() -> None:
    table = OURS.token_bytes
    assert [table[OURS.control_ids[text]] for text in SPECIAL] == [b"", b"", b""]
    assert [table[OURS.control_ids[text]] for text in NOT_SPECIAL] == [text.encode() for text in NOT_SPECIAL]
    think = OURS.control_ids["<think>"]
    assert Detokenizer(table, frozenset({think})).feed([think]) == ""


def test_an_id_outside_the_tokenizer_is_an_error() -> None:
    with pytest.raises(ServiceError, match="token id 99999"):
        Detokenizer(OURS.token_bytes).feed([5, 99999])


@given(st.lists(st.text(max_size=50), max_size=5))
def test_plain_encoding_equals_the_library_text_by_text(texts: list[str]) -> None:
    free = [text for text in texts if not any(token in text for token in OURS.control_ids)]
    assert OURS.encode_plain(free) == [TOKENIZER.encode(text, add_special_tokens=False).ids for text in free]


def test_checksum_is_of_the_file(text: ModelText) -> None:
    assert text.tokenizer.sha256 != OURS.sha256  # same tokenizer, other bytes
    assert len(OURS.sha256) == 64 and OURS.num_tokens == TOKENIZER.get_vocab_size()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"type": "Metaspace"}}, "BPE with ByteLevel"),
        ({"decoder": None}, "not understood"),
        ({"model": {"type": "Unigram", "vocab": []}}, "BPE with ByteLevel"),
        ({"added_tokens": None}, "not understood"),
        ({"added_tokens": [FILE["added_tokens"][0] | {"lstrip": True}]}, "takes in its neighbours"),
        ({"added_tokens": [FILE["added_tokens"][0] | {"content": "a", "id": 67}]}, "plain text can form"),
    ],
)
def test_tokenizers_that_would_be_misread_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        TextTokenizer(json.dumps(FILE | change).encode())


def test_a_file_that_is_no_json_is_refused() -> None:
    with pytest.raises(SetupError, match="not understood"):
        TextTokenizer(b"{")
