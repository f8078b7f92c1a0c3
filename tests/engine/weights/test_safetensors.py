"""The container trusts nothing: cut, grown or contradictory files are refused before a tensor is read."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from contracts.errors import SetupError
from engine.weights.safetensors import SafetensorsFolder
from support import safetensors_writer as writer

TENSORS = {
    "a.weight": writer.stored("F32", np.arange(12).reshape(3, 4)),
    "b": writer.stored("F16", np.arange(5)),
    "c": writer.stored("I32", np.arange(2)),
}


def refusal(folder: Path) -> str:
    with pytest.raises(SetupError) as caught:
        SafetensorsFolder(folder)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_bytes_are_those_of_the_library_s_writer(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.arange(7, dtype=np.int32)}
    save_file(arrays, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path)
    for name, array in arrays.items():
        assert folder.ranges[name].shape == array.shape and folder.raw(name).tobytes() == array.tobytes()


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_one_file_or_shards(tmp_path: Path, num_shards: int) -> None:
    writer.write_shards(tmp_path, TENSORS, num_shards)
    folder = SafetensorsFolder(tmp_path)
    assert set(folder.ranges) == set(TENSORS) and len(folder.identity) == num_shards
    for name, (_, shape, content) in TENSORS.items():
        assert folder.ranges[name].shape == shape and folder.raw(name).tobytes() == content
    folder.release()
    assert folder.raw("b").tobytes() == TENSORS["b"][2], "pages come back"


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    writer.write_file(path, TENSORS)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert str(path) in refusal(tmp_path)
    path.write_bytes(content + b"\0")
    assert f"longer than its header says: {len(content) + 1} bytes, expected {len(content)}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data_offsets": [0, 44]}, "tensor a.weight has 44 bytes"),
        ({"data_offsets": [8, 56]}, "tensor a.weight begins at byte"),
        ({"data_offsets": [-48, 0]}, "tensor a.weight has 48 bytes"),
        ({"shape": [3, 5]}, "[3, 5] of F32 differs"),
        ({"shape": [0, 4]}, "[0, 4] of F32 differs"),
        ({"dtype": "F6"}, "tensor a.weight is stored as F6; supported: F64, F32"),
        ({"dtype": 7}, "header that cannot be read"),
    ],
)
def test_header_that_lies_is_refused(tmp_path: Path, change: dict[str, object], text: str) -> None:
    path = tmp_path / "model.safetensors"
    writer.write_file(path, TENSORS)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["a.weight"] |= change
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    assert text in refusal(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    writer.write_shards(tmp_path, TENSORS, 2)
    index = tmp_path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())["weight_map"]

    def write(weight_map: dict[str, str]) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")

    write(listed | {"d": "model-00001-of-00002.safetensors"})
    assert "tensor d is not in model-00001-of-00002.safetensors" in refusal(tmp_path)
    write(listed | {"b": "model-00001-of-00002.safetensors"})
    assert "tensor b is not in model-00001-of-00002.safetensors" in refusal(tmp_path)
    write({name: shard for name, shard in listed.items() if name != "c"})
    assert "does not list tensor c, which is in model-00001-of-00002.safetensors" in refusal(tmp_path)
    write(listed | {"b": "../model-00002-of-00002.safetensors"})
    assert "names '../model-00002-of-00002.safetensors'" in refusal(tmp_path)
    write({})
    assert "lists no tensor" in refusal(tmp_path)
    index.write_text("[]", encoding="utf-8")
    assert "cannot be read" in refusal(tmp_path)


def test_missing_shard_and_empty_folder_are_named(tmp_path: Path) -> None:
    assert "has neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)
    writer.write_shards(tmp_path, TENSORS, 2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors cannot be read" in refusal(tmp_path)


def test_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    writer.write_shards(tmp_path, TENSORS, 2)
    writer.write_file(tmp_path / "model-00002-of-00002.safetensors", TENSORS)
    assert "is in model-00001-of-00002.safetensors and model-00002-of-00002.safetensors" in refusal(tmp_path)
