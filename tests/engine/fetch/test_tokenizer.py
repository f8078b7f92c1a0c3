"""tokenizer.json against two oracles: transformers' own reading of the GGUF file, and a plain byte-pair encoder.

transformers drops the pre-tokenizer's name and keeps GPT-2's pattern only, so its tokenizer gets the missing step here;
the plain one implements both published patterns with the `regex` package and merges pair by pair.
"""

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from contracts.errors import SetupError
from engine.gguf_tokenizer import build_tokenizer
from engine.weights.gguf import Vocabulary, read_header

GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
CORPUS = [
    "",
    " ",
    "Write a Python function that reverses a string.",
    "def reverse(text: str) -> str:\n    return text[::-1]\n\n\tif x:\r\n\t\tpass\n",
    "for (int i = 0; i < 1234567890; ++i) { sum += a[i]*3.14159e-10; }  // 0x1F 1_000",
    "1", "12", "  12  3", "a1b22c333", "v1.2.3-rc4", "2024-11-30T15:29:00Z", "½ ² ٣٤٥ 一二三 Ⅷ ৪৫",
    "naïve café Ångström ﬁ İstanbul ß",
    "日本語のテキスト、漢字とかな。", "한국어 문장입니다", "Привет, мир!", "שלום עולם", "مرحبا بالعالم",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 ok 👍🏽", "e\u0301 combining, zero\u200bwidth, bom\ufeff, nbsp\u00a0end",
    "   leading and trailing   ", "\n\n\n", " \t \n \r ", "I'm, you'll, they've, it's; DON'T WE'RE",
    "https://example.org/a?b=c&d=%20#frag <tag attr=\"v\">&amp;</tag>", "{\"key\": [1, 2.5, null], \"s\": \"\\u00e9\"}",
    "\x00\x01\x7f\x80", "a" * 300, "ab " * 100, "()[]{}<>!!??...---===***", "ſ K Å",
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary(smollm2_folder: Path) -> Vocabulary:
    return read_header(smollm2_folder / "weights.gguf").vocabulary


@pytest.fixture(scope="module")
def ours(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def plain(vocabulary: Vocabulary) -> "PlainEncoder":
    return PlainEncoder(vocabulary)


@pytest.fixture(scope="module")
def theirs(smollm2_folder: Path) -> Tokenizer:
    loaded = AutoTokenizer.from_pretrained(smollm2_folder, gguf_file="weights.gguf")
    tokenizer: Tokenizer = loaded.backend_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), tokenizer.pre_tokenizer]
    )
    return tokenizer


class PlainEncoder:
    """Byte-pair encoding by the book: split, map bytes to characters, merge the pair of lowest rank again and again."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        self._ranks = {merge: rank for rank, merge in enumerate(vocabulary.merges)}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._characters = {byte: chr(byte) for byte in printable} | {b: chr(256 + i) for i, b in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        pieces = [piece for run in regex.split(r"(\p{N})", text) if run for piece in GPT2.findall(run)]
        return [self._ids[token] for piece in pieces for token in self._merge(piece)]

    def knows(self, text: str) -> bool:
        """Whether the vocabulary has a token for every byte of the text."""
        return all(self._characters[byte] in self._ids for byte in text.encode())

    def _merge(self, piece: str) -> list[str]:
        characters = [self._characters[byte] for byte in piece.encode()]
        tokens = [character for character in characters if character in self._ids]  # what is dropped parts no pair
        while len(tokens) > 1:
            ranks = [self._ranks.get(f"{left} {right}", len(self._ranks)) for left, right in pairwise(tokens)]
            best = min(ranks)
            if best == len(self._ranks):
                break
            at = ranks.index(best)
            tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
        return tokens


@pytest.mark.weights
@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_corpus_equals_both_oracles(text: str, ours: Tokenizer, theirs: Tokenizer, plain: "PlainEncoder") -> None:
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert ids == plain.encode(text)
    assert ours.decode(ids, skip_special_tokens=False) == text


@pytest.mark.weights
def test_any_text_equals_plain_encoding_and_survives(ours: Tokenizer, plain: "PlainEncoder") -> None:
    @settings(max_examples=200, deadline=None)
    @given(text=st.text(max_size=40))
    def check(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == plain.encode(text)
        if plain.knows(text):
            assert ours.decode(ids, skip_special_tokens=False) == text

    check()


@pytest.mark.weights
def test_bytes_that_the_model_never_learnt_are_dropped_as_its_makers_do(
    ours: Tokenizer, theirs: Tokenizer, plain: "PlainEncoder"
) -> None:
    unknown = {byte for byte in range(256) if not plain.knows(bytes([byte]).decode("latin-1"))} - set(range(128, 256))
    assert unknown == {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D}
    for text in ("a\x04b", "\x1d", "\U00040000", "\ue0df\U00065000"):
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False).ids == plain.encode(text)


@pytest.mark.weights
def test_special_tokens_are_special_only_when_asked(ours: Tokenizer, theirs: Tokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x"
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert [i for i in ids if i < 17] == [1, 2, 0, 3]
    assert ours.decode(ids, skip_special_tokens=True) == "user\nhi\nx"
    plain = Tokenizer.from_str(ours.to_str())
    plain.encode_special_tokens = True
    disarmed = plain.encode(text, add_special_tokens=False).ids
    assert min(disarmed) >= 17 and plain.decode(disarmed, skip_special_tokens=False) == text


@pytest.mark.weights
def test_vocabulary_is_the_file_s(ours: Tokenizer, theirs: Tokenizer, vocabulary: Vocabulary) -> None:
    assert ours.get_vocab_size() == 49152
    assert ours.get_vocab() == theirs.get_vocab()
    assert [ours.id_to_token(i) for i in range(49152)] == list(vocabulary.tokens)
    assert sorted(ours.get_added_tokens_decoder()) == list(range(17))


ALPHABET = tuple(sorted(ByteLevel.alphabet()))
SMALL = Vocabulary("gpt2", "smollm", ("<s>", *ALPHABET, "th"), (3, *[1] * 257), ("t h",), "")


def test_small_vocabulary() -> None:
    tokenizer = build_tokenizer(SMALL)
    assert tokenizer.encode("<s>th t9").tokens == ["<s>", "th", "Ġ", "t", "9"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "llama"}, "tokenizer model 'llama' is not supported by this version; supported: gpt2"),
        ({"pre_tokenizer": "qwen2"}, "pre-tokenizer 'qwen2' is not supported by this version; supported: smollm"),
        ({"token_types": (3,)}, "258 tokens but 1 token types"),
        ({"token_types": (3, *[1] * 256, 6)}, "token types [6] are not supported"),
        ({"tokens": ("<s>", "<s>", *ALPHABET)}, "a token occurs twice"),
        ({"merges": ("th",)}, "merge 'th' is not two tokens"),
        ({"merges": ("t h e",)}, "merge 't h e' is not two tokens"),
    ],
)
def test_vocabulary_without_translation_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(SetupError) as caught:
        build_tokenizer(dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]
    assert text in caught.value.message
