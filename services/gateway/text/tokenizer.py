"""One model's tokenizer: plain text to ids, ids to bytes, control tokens by name. Owns the tokenizer file's meaning.

Two tables are made from the file: an encoder without any added token, so that no text can ever become a control token
(prompt.py places those by id), and the bytes of every id for the detokeniser. Only byte-level tokenizers are known,
because only there are pieces independent of each other and ids plain bytes.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from contracts.errors import SetupError

_HIDDEN = b""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """An added token of the tokenizer; hidden ones are never shown to a client."""

    token_id: int
    text: str
    hidden: bool


class TextTokenizer:
    """Encoder and byte table of one tokenizer file; immutable and safe to share between threads."""

    def __init__(self, file_content: bytes) -> None:
        """Raises: SetupError when the file is not a byte-level tokenizer as described above."""
        parsed = _parse(file_content)
        self.sha256 = hashlib.sha256(file_content).hexdigest()
        self.control = tuple(
            ControlToken(token["id"], token["content"], bool(token["special"])) for token in parsed["added_tokens"]
        )
        self.control_ids = {token.text: token.token_id for token in self.control}
        vocab = parsed["model"]["vocab"]
        self._plain = Tokenizer.from_str(json.dumps(parsed | {"added_tokens": []}))
        self.token_bytes = _byte_table(vocab, self.control)
        self._longest = _longest_token(parsed, self.token_bytes)
        self._check_control_is_unreachable()

    @property
    def num_tokens(self) -> int:
        """Ids below this have bytes."""
        return len(self.token_bytes)

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text by itself; no control token can come out. Releases the interpreter lock."""
        return [encoding.ids for encoding in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def fewest_ids(self, num_bytes: int) -> int:
        """A proven lower bound of the ids that text of this size has; 0 where there is none."""
        return 0 if self._longest is None else -(-num_bytes // self._longest)

    def _check_control_is_unreachable(self) -> None:
        ids = set(self.control_ids.values())
        for token, encoded in zip(self.control, self.encode_plain([t.text for t in self.control]), strict=True):
            if len(token.text) < 2 or not ids.isdisjoint(encoded):
                raise SetupError(f"tokenizer: plain text can form the control token {token.text!r}")


def _parse(file_content: bytes) -> Any:  # the JSON of a foreign file, checked here
    try:
        parsed = json.loads(file_content)
        kind, decoder = parsed["model"]["type"], parsed["decoder"]["type"]
        added = parsed["added_tokens"]
        strips = [token["content"] for token in added if token["lstrip"] or token["rstrip"] or token["single_word"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(f"tokenizer file is not understood: {type(error).__name__} {error}") from error
    if kind != "BPE" or decoder != "ByteLevel":
        raise SetupError(f"tokenizer is {kind} with a {decoder} decoder, supported is BPE with ByteLevel")
    if strips:
        raise SetupError(f"tokenizer: control token {strips[0]!r} takes in its neighbours, which is not supported")
    return parsed


def _longest_token(parsed: Any, token_bytes: Sequence[bytes]) -> int | None:
    """Bytes of text that one id covers at most; None where a normalizer may shrink the text first."""
    return None if parsed.get("normalizer") else max(1, *map(len, token_bytes))


def _byte_table(vocab: dict[str, int], control: Sequence[ControlToken]) -> tuple[bytes, ...]:
    num_tokens = 1 + max([*vocab.values(), *(token.token_id for token in control)], default=-1)
    table = [_HIDDEN] * num_tokens
    byte_of = _byte_alphabet()
    added = {token.token_id for token in control}
    try:
        for text, token_id in vocab.items():
            if token_id not in added:
                table[token_id] = bytes([byte_of[character] for character in text])
    except KeyError as error:
        raise SetupError(f"tokenizer: {error} is no byte of the byte-level alphabet") from error
    for token in control:
        table[token.token_id] = _HIDDEN if token.hidden else token.text.encode()
    return tuple(table)


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself where printable, else 256 upwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
