"""GGUF files of the hybrid family, written by another hand: every number, token and rule comes back."""

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, MODEL_ARCH, MODEL_TENSOR, TENSOR_NAMES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file
from tokenizers import Tokenizer

from contracts.errors import SetupError
from engine.convert.gguf_input import _all_kinds, _decode, open_gguf
from engine.model_home import read_folder
from engine.registry import lookup
from engine.spec import describe_differences
from engine.weights.checkpoint import open_weights
from engine.weights.gguf_dialect import LlamaDialect, Qwen35Dialect
from engine.weights.stored import StoredWeights
from support.bound_weights import Values, bind, public_values
from support.conversion import convert_quietly, spec_of
from support.gguf_hybrid import stored_name, write_hybrid_gguf
from support.hybrid_checkpoint import NESTED, TINY_HYBRID
from support.tiny_llama import TINY_LLAMA, random_tensors, write_gguf

# float32 of (w + 1) - 1 and of log(exp(A)): one rounding each at magnitudes around one.
TOLERANCE = 3e-7


@pytest.fixture(scope="module")
def values() -> Values:
    tensors = load_file(TINY_HYBRID / "model.safetensors")
    return {name.removeprefix(NESTED): tensor.float().numpy() for name, tensor in tensors.items()}


def is_exact(name: str) -> bool:
    return not (("norm" in name and "linear_attn.norm" not in name) or name.endswith("A_log"))


def assert_equal(found: Values, expected: Values) -> None:
    assert set(found) == set(expected)
    for name, numbers in expected.items():
        got = found[name].reshape(numbers.shape)
        if is_exact(name):
            assert np.array_equal(got, numbers), name
        else:
            assert np.abs(got - numbers).max() <= TOLERANCE * max(1.0, float(np.abs(numbers).max())), name


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_every_number_comes_back(tmp_path: Path, values: Values, kind: str) -> None:
    path = tmp_path / "m.gguf"
    write_hybrid_gguf(path, TINY_HYBRID, values, lambda _: kind)
    opened = open_gguf(path, "tiny-hybrid")
    expected = lookup("tiny-hybrid").spec
    assert describe_differences(expected, opened.spec, ignore=frozenset({"dead_token_rows"})) == ""
    weights, _ = bind(opened.spec, StoredWeights(lambda _: opened.source))
    assert_equal(public_values(weights, opened.spec), values)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_kinds_equal_the_package(tmp_path: Path, values: Values, kind: str) -> None:
    """Rows of value heads move with their codes, columns of the output projection after decoding."""
    path = tmp_path / "m.gguf"
    write_hybrid_gguf(path, TINY_HYBRID, values, lambda _: kind)
    rounded = dict(values)
    for name, numbers in values.items():
        if numbers.ndim == 2:
            quant = GGMLQuantizationType[kind]
            stored = numbers.astype(np.float16) if kind == "F16" else gguf.quants.quantize(numbers, quant)
            rounded[name] = stored.astype(np.float32) if kind == "F16" else dequantize(stored, quant)
    opened = open_gguf(path, "x")
    for name in rounded:
        if rounded[name].ndim != 2 or name.endswith("out_proj.weight"):
            continue
        num_rows = rounded[name].shape[0]
        got = opened.source.read_floats(name, 0, num_rows).values
        assert np.array_equal(got, rounded[name]), name
        assert np.array_equal(opened.source.read_floats(name, num_rows // 2, num_rows).values, got[num_rows // 2 :])
    out = "layers.1.linear_attn.out_proj.weight"  # its columns are quantised in tiled order, in other groups
    error = np.linalg.norm(opened.source.read_floats(out, 0, 128).values - values[out]) / np.linalg.norm(values[out])
    assert error < 0.12


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL"])
def test_kinds_that_only_the_package_knows(kind: str) -> None:
    elements, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = np.random.default_rng(0).integers(0, 60, (5, 3 * num_bytes), dtype=np.uint8)  # small exponents: no NaN
    values = _decode(raw, _all_kinds()[kind])
    assert values.shape == (5, 3 * elements) and values.dtype == np.float32
    assert np.array_equal(values, dequantize(raw, GGMLQuantizationType[kind]))


def test_conversion_of_a_gguf_is_that_of_the_checkpoint(tmp_path: Path, values: Values) -> None:
    path = tmp_path / "model.gguf"
    write_hybrid_gguf(path, TINY_HYBRID, values, lambda _: "BF16")
    folder = convert_quietly(path, tmp_path / "a" / "tiny-hybrid", "exact")
    weights, _ = bind(lookup("tiny-hybrid").spec, open_weights(folder))
    assert_equal(public_values(weights, spec_of(folder)), values)
    other = convert_quietly(TINY_HYBRID, tmp_path / "b" / "tiny-hybrid", "exact")
    for field in ("stop_token_ids", "eos_token", "bos_token", "vocab_size", "default_sampling", "license"):
        assert getattr(folder.manifest, field) == getattr(other.manifest, field), field
    assert (folder.path / "chat_template.jinja").read_bytes() == (other.path / "chat_template.jinja").read_bytes()
    assert sorted(os.listdir(tmp_path / "a")) == ["tiny-hybrid"]
    read_folder(folder.path).verify_digests()


TEXTS = [
    "def f(x):\n    return x[1:-1]  # naïve café\n", "12345 v1.2.3\r\n\r\n\t x", "<|im_start|>user\nhi<|im_end|>\n",
    "<think>\n\n</think>\n\n<tool_call>\n<function=f>\n</tool_call>", "e\u0301 İ ß ﬁ ½ ²³ ٣٤ हिन्दी 日本語 😀👩‍👩‍👧",
    "   leading\n\n\n", "I'M you'll WE'RE don't", "", "[PAD2047]",
]  # fmt: skip


def test_tokenizer_of_a_gguf_is_that_of_the_checkpoint(tmp_path: Path, values: Values) -> None:
    path = tmp_path / "m.gguf"
    write_hybrid_gguf(path, TINY_HYBRID, values, lambda _: "BF16")
    text = open_gguf(path, "x").text
    assert text.num_tokens == 2042
    ours = Tokenizer.from_str(text.tokenizer_json.decode())
    theirs = Tokenizer.from_file(str(TINY_HYBRID / "tokenizer.json"))
    for sample in TEXTS:
        for special in (False, True):
            ours.encode_special_tokens = theirs.encode_special_tokens = special
            ids = theirs.encode(sample, add_special_tokens=False).ids
            assert ours.encode(sample, add_special_tokens=False).ids == ids, sample
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)
    assert ours.get_vocab(with_added_tokens=True) == theirs.get_vocab(with_added_tokens=True)


def test_names_are_the_package_s() -> None:
    spec = lookup("tiny-hybrid").spec
    names = gguf.get_tensor_name_map(MODEL_ARCH.QWEN35, spec.num_layers + 1)
    dialect = Qwen35Dialect(spec)
    assert {stored: stored_name(public, names, spec.num_layers) for stored, public in dialect.names.items()} == {
        stored: stored for stored in dialect.names
    }
    llama = gguf.get_tensor_name_map(MODEL_ARCH.LLAMA, TINY_LLAMA.num_layers)
    for stored, public in LlamaDialect(TINY_LLAMA).names.items():
        full = public if public.startswith("lm_head") else f"model.{public}"
        assert llama.get_name(full, try_suffixes=(".weight",)) == stored
    assert TENSOR_NAMES[MODEL_TENSOR.NEXTN_EH_PROJ] == "blk.{bid}.nextn.eh_proj"


def refusal(path: Path) -> str:
    with pytest.raises(SetupError) as caught:
        convert_quietly(path, path.parent / "out" / "m", "exact")
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"block_count": 4}, "tensors missing: blk.3.nextn.eh_proj.weight; blk.3.nextn.enorm.weight"),
        ({"nextn_predict_layers": 0}, "tensors missing: blk.4.attn_gate.weight; blk.4.attn_qkv.weight; blk.4.ssm_a"),
        ({"nextn_predict_layers": 3}, "2 layers and 3 MTP layers are not supported"),
        ({"attention.key_length": None}, "metadata qwen35.attention.key_length is None, expected a positive integer"),
        ({"rope.dimension_sections": [8, 8, 8, 0]}, "rope.dimension_sections (8, 8, 8) are not half of 64 dims"),
        ({"ssm.time_step_rank": 4}, "misshapen"),
        ({"feed_forward_length": 100}, "misshapen"),
        ({"rope.freq_base": None}, "metadata qwen35.rope.freq_base is None, expected a positive number"),
    ],
)
def test_metadata_that_lies_is_named(tmp_path: Path, values: Values, changes: dict[str, Any], text: str) -> None:
    path = tmp_path / "m.gguf"
    write_hybrid_gguf(path, TINY_HYBRID, values, lambda _: "BF16", **changes)
    assert text in refusal(path)


def test_positive_decay_is_refused(tmp_path: Path, values: Values) -> None:
    """A file that stores A_log itself would be silently wrong; -exp is always negative."""
    path = tmp_path / "m.gguf"
    wrong = values | {"layers.0.linear_attn.A_log": np.full(6, np.nan, dtype=np.float32)}
    write_hybrid_gguf(path, TINY_HYBRID, wrong, lambda _: "BF16")
    assert "tensor blk.0.ssm_a has weights that are not finite" in refusal(path)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, TINY_LLAMA, random_tensors(TINY_LLAMA))
    assert "architecture 'llama' cannot be converted by this version; supported: qwen35" in refusal(path)
    path.write_bytes(path.read_bytes()[:100])
    assert "is not a readable GGUF file" in refusal(path)
