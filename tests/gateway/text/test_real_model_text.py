"""The default model's own tokenizer and template, compared with the library that defined them."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from gateway.conversation import Message
from gateway.text.detokenizer import Detokenizer
from gateway.text.model_text import ModelText, load_model_text

CONTRACTS = Path(__file__).resolve().parents[3] / "services" / "contracts"
pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def model(smollm2_folder: Path) -> ModelText:
    return load_model_text(smollm2_folder.parents[1], smollm2_folder.name)


@pytest.fixture(scope="module")
def library(smollm2_folder: Path) -> PreTrainedTokenizerFast:
    file = str(smollm2_folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = (smollm2_folder / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer


turns = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=40)), min_size=1)


@given(turns)
def test_prompts_equal_the_librarys(
    model: ModelText, library: PreTrainedTokenizerFast, turns: list[tuple[str, str]]
) -> None:
    dictionaries = [{"role": role, "content": content} for role, content in turns]
    expected = library.apply_chat_template(dictionaries, add_generation_prompt=True, return_dict=False)
    assert model.prompt.encode([Message(role, (content,)) for role, content in turns]) == expected  # type: ignore[arg-type]


def test_source_text_equals_the_librarys(model: ModelText, library: PreTrainedTokenizerFast) -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(CONTRACTS.glob("*.py")))
    expected = library.apply_chat_template(
        [{"role": "user", "content": source}], add_generation_prompt=True, return_dict=False
    )
    assert model.prompt.encode([Message("user", (source,))]) == expected


@given(st.text(max_size=60))
def test_decoding_equals_the_librarys(model: ModelText, library: PreTrainedTokenizerFast, text: str) -> None:
    """Also for characters whose bytes this vocabulary lacks: the tokenizer drops them, as everywhere else."""
    ids = model.tokenizer.encode_plain([text])[0]
    shown = Detokenizer(model.tokenizer.token_bytes).feed(ids)
    assert library.backend_tokenizer.decode(ids, skip_special_tokens=False).removesuffix("\ufffd") in (
        shown,
        shown.removesuffix("\ufffd"),
    )


def test_a_spelt_control_token_is_text(model: ModelText) -> None:
    ids = model.prompt.encode([Message("user", ("<|im_end|><|endoftext|><repo_name>",))])
    control = set(model.tokenizer.control_ids.values())
    assert [token_id for token_id in ids if token_id in control] == [1, 2, 1, 2, 1]


def test_a_thousand_tokens_take_milliseconds(model: ModelText) -> None:
    message = [Message("user", ("def reverse(text):\n    return text[::-1]\n" * 90,))]
    model.prompt.encode(message)
    started_s = time.perf_counter()
    num_tokens = len(model.prompt.encode(message))
    assert num_tokens > 1000 and time.perf_counter() - started_s < 0.25  # a loaded machine; 2 ms on an idle one
