"""A GGUF file as named, bounds-checked byte ranges, memory-mapped. Owns the mapping; decodes no number.

The tensor directory says where everything is; nothing here parses a file format. Pages are read when first touched.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from contracts.model_folder import TensorDirectory, TensorEntry


@dataclass(frozen=True, slots=True)
class StorageKind:
    """block_elements consecutive elements of a row take block_bytes; bits is None where no code is handed over."""

    name: str
    block_elements: int
    block_bytes: int
    bits: Literal[4, 8] | None
    has_minimum: bool = False


STORAGE_KINDS: Final[Mapping[str, StorageKind]] = {
    kind.name: kind
    for kind in (
        StorageKind("F32", 1, 4, None),
        StorageKind("F16", 1, 2, None),
        StorageKind("BF16", 1, 2, None),
        StorageKind("Q4_0", 32, 18, 4),
        StorageKind("Q4_1", 32, 20, 4, has_minimum=True),
        StorageKind("Q8_0", 32, 34, 8),
    )
}


class GgufFile:
    """Tensors of one file by name.

    Raises: SetupError when the file is shorter or longer than the directory says, when an entry leaves the file, has
    an unsupported kind, or a byte count that does not follow from its shape.
    """

    def __init__(
        self, path: Path, directory: TensorDirectory, kinds: Mapping[str, StorageKind] = STORAGE_KINDS
    ) -> None:
        self.path: Final = path
        self._kinds = kinds
        self.directory: Final = directory
        self.entries: Final = {entry.name: entry for entry in directory.tensors}
        if len(self.entries) != len(directory.tensors):
            raise SetupError(f"{path}: a tensor name occurs twice")
        actual_bytes = path.stat().st_size
        if actual_bytes != directory.weights_bytes:
            raise SetupError(f"{path} has {actual_bytes} bytes, expected {directory.weights_bytes}")
        for entry in directory.tensors:
            _check_entry(path, entry, actual_bytes, kinds)
        # Copy-on-write, because torch refuses to share read-only memory quietly; nobody writes.
        with path.open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._pages, dtype=np.uint8)

    def kind(self, name: str) -> StorageKind:
        """How the tensor is stored."""
        return self._kinds[self.entries[name].kind]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes: [rows, bytes of a row], or [bytes] for a vector; a view of the mapping."""
        entry = self.entries[name]
        span = self._bytes[entry.offset : entry.offset + entry.bytes]
        return span.reshape(entry.shape[0], -1) if len(entry.shape) == 2 else span

    def release(self) -> None:
        """Let go of the file's pages; they are read again when touched."""
        self._pages.madvise(mmap.MADV_DONTNEED)


def _check_entry(path: Path, entry: TensorEntry, file_bytes: int, kinds: Mapping[str, StorageKind]) -> None:
    kind = kinds.get(entry.kind)
    if kind is None:
        supported = ", ".join(kinds)
        raise SetupError(f"{path}: tensor {entry.name} is stored as {entry.kind}; supported: {supported}")
    if not entry.shape or len(entry.shape) > 2 or min(entry.shape) < 1 or entry.shape[-1] % kind.block_elements:
        raise SetupError(f"{path}: tensor {entry.name} has shape {entry.shape}, not a {entry.kind} matrix or vector")
    expected_bytes = prod(entry.shape) // kind.block_elements * kind.block_bytes
    if entry.bytes != expected_bytes:
        raise SetupError(f"{path}: tensor {entry.name} has {entry.bytes} bytes, {entry.shape} needs {expected_bytes}")
    if entry.offset < 0 or entry.offset + entry.bytes > file_bytes:
        raise SetupError(
            f"{path}: tensor {entry.name} ends at byte {entry.offset + entry.bytes}, the file has {file_bytes}"
        )
