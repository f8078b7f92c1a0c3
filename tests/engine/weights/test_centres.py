"""Centring vectors: zeros until a calibration wrote them, then exactly those, checked and part of the manifest."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from contracts.errors import SetupError
from engine.model_home import ModelFolder, read_folder
from engine.registry import lookup
from engine.weights.centres import KvCentres, centre_shape, read_centres, write_centres
from support.conversion import convert_quietly
from support.hybrid_checkpoint import TINY_HYBRID

SPEC = lookup("tiny-hybrid").spec


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return convert_quietly(TINY_HYBRID, tmp_path / "tiny-hybrid", "exact")


def random_centres(seed: int = 0) -> KvCentres:
    rng = np.random.default_rng(seed)
    keys, values = (rng.normal(size=centre_shape(SPEC)).astype(np.float32) for _ in range(2))
    return KvCentres(keys, values)


def test_layers_are_the_attention_layers_then_mtp() -> None:
    assert centre_shape(SPEC) == (2, 1, 256)
    assert centre_shape(lookup("qwen3.8-27b").spec) == (17, 4, 256)
    assert centre_shape(dataclasses.replace(SPEC, mtp_layers=0)) == (1, 1, 256)


def test_folder_without_them_has_zeros(folder: ModelFolder) -> None:
    centres = read_centres(folder, SPEC)
    assert not centres.keys.any() and not centres.values.any()
    assert centres.keys.shape == centres.values.shape == centre_shape(SPEC)
    assert centres.fingerprint != random_centres().fingerprint


def test_written_centres_come_back_and_may_be_replaced(folder: ModelFolder) -> None:
    for seed in (1, 2):
        centres = random_centres(seed)
        folder = write_centres(folder, SPEC, centres)
        again = read_folder(folder.path)
        assert again.manifest == folder.manifest and "kv_centres.safetensors" in again.manifest.files
        again.verify_digests()
        found = read_centres(again, SPEC)
        assert np.array_equal(found.keys, centres.keys) and np.array_equal(found.values, centres.values)
        assert found.fingerprint == centres.fingerprint
        theirs = load_file(folder.path / "kv_centres.safetensors")
        assert np.array_equal(theirs["keys"], centres.keys) and np.array_equal(theirs["values"], centres.values)


def test_what_does_not_fit_is_refused(folder: ModelFolder) -> None:
    folder = write_centres(folder, SPEC, random_centres())
    with pytest.raises(SetupError, match=r"expected keys and values of \[1, 1, 256\] F32"):
        read_centres(folder, dataclasses.replace(SPEC, mtp_layers=0))
    path = folder.path / "kv_centres.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"format_version": "1"', b'"format_version": "7"'))
    with pytest.raises(SetupError, match="has format 7, this version reads 1"):
        read_centres(folder, SPEC)
    path.write_bytes(content[:-4] + b"\0\0\xc0\x7f")
    with pytest.raises(SetupError, match="values that are not finite"):
        read_centres(folder, SPEC)
    path.write_bytes(content[:-4])
    with pytest.raises(SetupError, match="is cut"):
        read_centres(folder, SPEC)
    with pytest.raises(SetupError, match=r"kv_centres\.safetensors has \d+ bytes, expected"):
        read_folder(folder.path)


def test_manifest_names_the_file(folder: ModelFolder) -> None:
    write_centres(folder, SPEC, random_centres())
    listed = json.loads((folder.path / "manifest.json").read_text())["files"]
    assert set(listed) == {
        "weights.bin",
        "weights.json",
        "tokenizer.json",
        "chat_template.jinja",
        "kv_centres.safetensors",
    }
