"""Tokenizer, template and special tokens of a checkpoint folder: what other files add, and what contradicts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from contracts.errors import SetupError
from contracts.generate import Sampling
from engine.convert.text_files import read_text_files
from support.hybrid_checkpoint import TINY_HYBRID


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(TINY_HYBRID / name, tmp_path / name)
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields), encoding="utf-8")


def token(content: str, **fields: Any) -> dict[str, Any]:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} | fields


def test_files_are_taken_as_they_are(folder: Path) -> None:
    text = read_text_files(folder)
    assert text.tokenizer_json == (TINY_HYBRID / "tokenizer.json").read_bytes()
    assert (text.num_tokens, text.stop_token_ids, text.eos_token, text.bos_token) == (
        2042,
        (2018, 2016),
        "<|im_end|>",
        "",
    )
    assert text.default_sampling == Sampling(temperature=0.7, top_p=0.9, top_k=20)


def test_tokens_that_only_the_tokenizer_config_has_are_added(folder: Path) -> None:
    known = {"2016": token("<|endoftext|>", special=True)}
    added = known | {"2043": token("<tts_pad>", special=True), "2042": token("<plain>", special=False)}
    change(folder / "tokenizer_config.json", added_tokens_decoder=added)
    text = read_text_files(folder)
    assert text.num_tokens == 2044
    tokenizer = Tokenizer.from_str(text.tokenizer_json.decode())
    assert tokenizer.encode("a<tts_pad><plain>", add_special_tokens=False).ids[-2:] == [2043, 2042]
    before = Tokenizer.from_file(str(TINY_HYBRID / "tokenizer.json"))
    sample = "<|im_start|>user\nx = 1<|im_end|>"
    assert tokenizer.encode(sample).ids == before.encode(sample).ids


@pytest.mark.parametrize("listed", [{"2050": token("<far>")}, {"2018": token("<other>")}])
def test_tokens_that_contradict_are_named(folder: Path, listed: dict[str, Any]) -> None:
    change(folder / "tokenizer_config.json", added_tokens_decoder=listed)
    with pytest.raises(SetupError, match=r"tokenizer_config.json: token 20\d\d is '<\w+>', tokenizer.json has"):
        read_text_files(folder)


def test_stop_tokens_come_from_the_generation_config_or_the_end_token(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=2016)
    assert read_text_files(folder).stop_token_ids == (2016,)
    (folder / "generation_config.json").unlink()
    text = read_text_files(folder)
    assert text.stop_token_ids == (2018,) and text.default_sampling == Sampling(temperature=0.0)
    change(
        folder / "tokenizer_config.json", eos_token={"content": "<|endoftext|>"}, bos_token={"content": "<|im_start|>"}
    )
    text = read_text_files(folder)
    assert (text.stop_token_ids, text.eos_token, text.bos_token) == ((2016,), "<|endoftext|>", "<|im_start|>")
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(SetupError, match="names no end token"):
        read_text_files(folder)


def test_stop_token_that_is_none_is_named(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[2018, 248046])
    with pytest.raises(SetupError, match=r"eos_token_id 248046 is no token of tokenizer\.json"):
        read_text_files(folder)


def test_template_may_be_in_the_tokenizer_config(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template="{{ messages }}")
    assert read_text_files(folder).template == "{{ messages }}"


def test_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(SetupError, match=r"generation_config\.json cannot be read"):
        read_text_files(folder)
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SetupError, match=r"tokenizer\.json cannot be read: No such file"):
        read_text_files(folder)
