"""Model folders on disk: where they are, whether they are whole, what they say. Owns reading; `fetch` writes them.

Shared by the engine's start, `fetch` and `models`. Imports neither torch nor gguf, so listing models is instant.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from contracts import codec
from contracts.errors import InvalidRequest, SetupError
from contracts.model_folder import (
    ARTIFACT_DIRECTORY_NAME,
    ARTIFACT_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    TEMPLATE_NAME,
    TENSORS_NAME,
    TOKENIZER_NAME,
    WEIGHTS_NAME,
    ModelManifest,
    TensorDirectory,
)

TEXT_NAMES = (TOKENIZER_NAME, TEMPLATE_NAME)
FILE_NAMES = (WEIGHTS_NAME, TENSORS_NAME, *TEXT_NAMES)
ARTIFACT_NAMES = (ARTIFACT_NAME, ARTIFACT_DIRECTORY_NAME, *TEXT_NAMES)
_HASH_CHUNK_BYTES = 1 << 20
_DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder whose files exist with the sizes its manifest states."""

    path: Path
    manifest: ModelManifest

    @property
    def holds_artifact(self) -> bool:
        """Whether the weights are an artifact of `convert`, not a downloaded file."""
        return ARTIFACT_NAME in self.manifest.files

    @property
    def weights_path(self) -> Path:
        """The weights file."""
        return self.path / (ARTIFACT_NAME if self.holds_artifact else WEIGHTS_NAME)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    def read_tensor_directory(self) -> TensorDirectory:
        """Where the weights' tensors lie.

        Raises: SetupError when the directory was made from another weights file or cannot be read.
        """
        directory = _decode_directory(self.path / TENSORS_NAME)
        weights = self.manifest.files[WEIGHTS_NAME]
        if (directory.weights_bytes, directory.weights_sha256) != (weights.bytes, weights.sha256):
            raise SetupError(f"{self.path / TENSORS_NAME} describes another {WEIGHTS_NAME}; {_fetch_again(self.path)}")
        return directory

    def verify_digests(self, max_file_bytes: int | None = None) -> None:
        """Read every file, or those of at most max_file_bytes, and compare SHA-256.

        Raises: SetupError naming the first file that differs.
        """
        for name, entry in self.manifest.files.items():
            if max_file_bytes is not None and entry.bytes > max_file_bytes:
                continue
            digest = file_sha256(self.path / name)
            if digest != entry.sha256:
                raise SetupError(
                    f"{self.path / name} is damaged: it has SHA-256 {digest[:_DIGEST_CHARS]}..., expected "
                    f"{entry.sha256[:_DIGEST_CHARS]}...; remove {self.path} and {_fetch_again(self.path)} "
                    f"(or: python -m engine.fetch {self.path.name} --verify)"
                )


def folder_path(home: Path, name: str) -> Path:
    """Where the model's folder is or will be."""
    return home / "models" / name


def open_folder(home: Path, name: str) -> ModelFolder:
    """Read the manifest and check every file's presence and size.

    Raises: SetupError naming what is missing and the command that mends it.
    """
    path = folder_path(home, name)
    if not (path / MANIFEST_NAME).is_file():
        raise SetupError(f"model {name} is not in {path.parent}; run: ./soloist fetch {name}")
    return read_folder(path)


def read_folder(path: Path) -> ModelFolder:
    """As open_folder, for a folder anywhere.

    Raises: SetupError naming what is missing.
    """
    manifest = _read_manifest(path)
    for file_name in ARTIFACT_NAMES if ARTIFACT_NAME in manifest.files else FILE_NAMES:
        if file_name not in manifest.files:
            raise SetupError(f"{path / MANIFEST_NAME} does not list {file_name}; {_fetch_again(path)}")
    for file_name, entry in manifest.files.items():
        _check_size(path / file_name, entry.bytes)
    return ModelFolder(path, manifest)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _read_manifest(path: Path) -> ModelManifest:
    try:
        manifest = codec.decode_manifest((path / MANIFEST_NAME).read_bytes())
    except (InvalidRequest, OSError) as error:
        raise SetupError(f"{path / MANIFEST_NAME} cannot be read: {error}; {_fetch_again(path)}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise SetupError(
            f"{path} has format {manifest.format_version}, this version reads {FORMAT_VERSION}; {_fetch_again(path)}"
        )
    return manifest


def _decode_directory(path: Path) -> TensorDirectory:
    try:
        return codec.decode_tensor_directory(path.read_bytes())
    except (InvalidRequest, OSError) as error:
        raise SetupError(f"{path} cannot be read: {error}; {_fetch_again(path.parent)}") from error


def _check_size(path: Path, expected_bytes: int) -> None:
    try:
        actual_bytes = path.stat().st_size
    except OSError as error:
        raise SetupError(f"{path} is missing; {_fetch_again(path.parent)}") from error
    if actual_bytes != expected_bytes:
        raise SetupError(f"{path} has {actual_bytes} bytes, expected {expected_bytes}; {_fetch_again(path.parent)}")


def _fetch_again(path: Path) -> str:
    return f"run: ./soloist fetch {path.name}"
