"""The text side of a checkpoint: tokenizer, chat template, special tokens. Owns reading them out of its folder.

Hands on what a model folder needs; checks that ids and vocabulary agree, so that a wrong tokenizer stops here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from contracts.errors import SetupError
from contracts.generate import Sampling

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
TEMPLATE_NAME = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class TextFiles:
    """tokenizer_json and template as the model folder will hold them; num_tokens is one more than the largest id."""

    tokenizer_json: bytes
    num_tokens: int
    template: str
    stop_token_ids: tuple[int, ...]
    bos_token: str
    eos_token: str
    default_sampling: Sampling


def read_text_files(folder: Path) -> TextFiles:
    """Read a checkpoint folder's text files.

    Raises: SetupError naming the file that is missing or contradicts another.
    """
    config = _decode(folder / TOKENIZER_CONFIG_NAME, _TokenizerConfig)
    generation = _decode(folder / GENERATION_CONFIG_NAME, _GenerationConfig)
    content = _read(folder / TOKENIZER_NAME)
    tokenizer = parse_tokenizer(content, folder / TOKENIZER_NAME)
    if _add_missing(tokenizer, config.added_tokens_decoder, folder):
        content = tokenizer.to_str().encode()
    eos_token = _text(config.eos_token)
    stop_token_ids = _stop_ids(generation, tokenizer, eos_token, folder)
    return TextFiles(
        tokenizer_json=content,
        num_tokens=count_tokens(tokenizer),
        template=_template(folder, config),
        stop_token_ids=stop_token_ids,
        bos_token=_text(config.bos_token),
        eos_token=eos_token or tokenizer.id_to_token(stop_token_ids[0]) or "",
        default_sampling=generation.sampling(),
    )


def parse_tokenizer(content: bytes, path: Path) -> Tokenizer:
    """Raises: SetupError when the file is no tokenizer."""
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception for every defect of the file
        raise SetupError(f"{path} cannot be read: {error}") from error


def count_tokens(tokenizer: Tokenizer) -> int:
    """One more than the largest id."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


class _AddedToken(msgspec.Struct):
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class _TokenText(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    added_tokens_decoder: dict[int, _AddedToken] = {}
    bos_token: str | _TokenText | None = None
    eos_token: str | _TokenText | None = None
    chat_template: str | list[_NamedTemplate] | None = None


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    do_sample: bool = False

    def sampling(self) -> Sampling:
        """What the makers recommend; greedy where they do not sample."""
        if not self.do_sample:
            return Sampling(temperature=0.0)
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, Sampling)


def _decode(path: Path, kind: type[Any]) -> Any:
    if not path.exists():
        return kind()
    try:
        return msgspec.json.decode(_read(path), type=kind, strict=False)
    except msgspec.DecodeError as error:
        raise SetupError(f"{path} cannot be read: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror or error}") from error


def _add_missing(tokenizer: Tokenizer, listed: dict[int, _AddedToken], folder: Path) -> bool:
    """Add tokens that only tokenizer_config.json has; returns whether there were any."""
    missing = {index: token for index, token in sorted(listed.items()) if tokenizer.id_to_token(index) is None}
    for token in missing.values():
        added = AddedToken(
            token.content, special=token.special, lstrip=token.lstrip, rstrip=token.rstrip,
            single_word=token.single_word, normalized=token.normalized,
        )  # fmt: skip
        tokenizer.add_special_tokens([added]) if token.special else tokenizer.add_tokens([added])
    for index, token in listed.items():
        if tokenizer.id_to_token(index) != token.content:
            raise SetupError(
                f"{folder / TOKENIZER_CONFIG_NAME}: token {index} is {token.content!r}, {TOKENIZER_NAME} has "
                f"{tokenizer.id_to_token(index)!r}"
            )
    return bool(missing)


def _text(token: str | _TokenText | None) -> str:
    return token.content if isinstance(token, _TokenText) else token or ""


def _stop_ids(generation: _GenerationConfig, tokenizer: Tokenizer, eos_token: str, folder: Path) -> tuple[int, ...]:
    listed = generation.eos_token_id
    if listed is None:
        found = tokenizer.token_to_id(eos_token) if eos_token else None
        if found is None:
            raise SetupError(f"{folder} names no end token: {GENERATION_CONFIG_NAME} has no eos_token_id")
        return (found,)
    ids = tuple(listed) if isinstance(listed, list) else (listed,)
    for index in ids:
        if tokenizer.id_to_token(index) is None:
            raise SetupError(f"{folder / GENERATION_CONFIG_NAME}: eos_token_id {index} is no token of {TOKENIZER_NAME}")
    return ids


def _template(folder: Path, config: _TokenizerConfig) -> str:
    path = folder / TEMPLATE_NAME
    if path.exists():
        return _read(path).decode()
    match config.chat_template:
        case str() as text:
            return text
        case [*named]:
            for entry in named:
                if entry.name == "default":
                    return entry.template
    raise SetupError(f"{folder} has no chat template: neither {TEMPLATE_NAME} nor one in {TOKENIZER_CONFIG_NAME}")
