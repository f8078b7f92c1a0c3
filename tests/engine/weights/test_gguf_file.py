"""The mapped file trusts nothing: sizes, bounds and byte counts are checked before a byte is read."""

from pathlib import Path

import msgspec
import pytest

from contracts.errors import SetupError
from contracts.model_folder import TensorDirectory, TensorEntry
from engine.weights.gguf import read_header
from engine.weights.gguf_file import GgufFile
from support.tiny_llama import TINY_LLAMA, random_tensors, write_gguf


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, TensorDirectory]:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TINY_LLAMA, random_tensors(TINY_LLAMA))
    return path, read_header(path).to_directory(path.stat().st_size, "0" * 64)


def with_entry(directory: TensorDirectory, **change: object) -> TensorDirectory:
    first, *rest = directory.tensors
    fields = {name: getattr(first, name) for name in first.__struct_fields__} | change
    return msgspec.structs.replace(directory, tensors=[TensorEntry(**fields), *rest])


def test_raw_bytes_are_the_file_s(weights: tuple[Path, TensorDirectory]) -> None:
    path, directory = weights
    file = GgufFile(path, directory)
    content = path.read_bytes()
    for entry in directory.tensors:
        assert file.raw(entry.name).tobytes() == content[entry.offset : entry.offset + entry.bytes]
    assert file.raw("token_embd.weight").shape == (TINY_LLAMA.vocab_size, 96 // 32 * 34)


def test_truncated_or_grown_file_is_refused(weights: tuple[Path, TensorDirectory]) -> None:
    path, directory = weights
    content = path.read_bytes()
    for damaged in (content[:-1], content + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(SetupError, match=f"has {len(damaged)} bytes, expected {len(content)}"):
            GgufFile(path, directory)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "Q6_K"}, "is stored as Q6_K; supported"),
        ({"offset": 10**12}, "the file has"),
        ({"offset": -8}, "the file has"),
        ({"bytes": 34}, "has 34 bytes"),
        ({"shape": [260, 90]}, "shape [260, 90]"),
        ({"shape": [260, 0]}, "shape [260, 0]"),
        ({"shape": [2, 2, 2]}, "shape [2, 2, 2]"),
        ({"shape": []}, "shape []"),
        ({"name": "output_norm.weight"}, "occurs twice"),
    ],
)
def test_entry_that_lies_is_refused(
    weights: tuple[Path, TensorDirectory], change: dict[str, object], text: str
) -> None:
    path, directory = weights
    with pytest.raises(SetupError) as caught:
        GgufFile(path, with_entry(directory, **change))
    assert text in caught.value.message


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"<html>not found</html>" * 9]
)
def test_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(SetupError, match="is not a readable GGUF file"):
        read_header(path)
