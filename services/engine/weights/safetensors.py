"""A folder of safetensors files as named, bounds-checked byte ranges, memory-mapped. Owns the container format.

One file, or shards with an index. All is checked before a tensor's byte is read: header, offsets, sizes, and that
the index and the shards agree. What tensors mean is `hf_source`'s.
"""

import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LENGTH_BYTES = 8

DTYPE_BYTES: Final[Mapping[str, int]] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Where one tensor lies: shard is the file's name, offset counts from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """What tells a shard from another of the same name, without reading its tensors."""

    name: str
    num_bytes: int
    modified_ns: int
    header_sha256: str


def read_file(path: Path) -> tuple[dict[str, TensorRange], NDArray[np.uint8]]:
    """The tensors of one small file and its bytes, which their offsets count in.

    Raises: SetupError when it cannot be read or is damaged.
    """
    try:
        content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror or error}") from error
    return {found.name: found for found in _ranges(path, _header(path, content), len(content))}, content


class SafetensorsFolder:
    """Tensors of all shards by name."""

    def __init__(self, path: Path) -> None:
        """Raises: SetupError naming the file that is absent or damaged, or the tensor that is in no shard or two."""
        self.path: Final = path
        listed = _read_index(path)
        shards = sorted(set(listed.values())) if listed is not None else [_only_file(path)]
        self._pages: dict[str, mmap.mmap] = {}
        self._bytes: dict[str, NDArray[np.uint8]] = {}
        self.identity: Final[list[ShardIdentity]] = []
        self.ranges: Final[dict[str, TensorRange]] = {}
        for shard in shards:
            self._add(shard)
        if listed is not None:
            self._compare(listed)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, a view of the mapping."""
        found = self.ranges[name]
        return self._bytes[found.shard][found.offset : found.offset + found.num_bytes]

    def release(self) -> None:
        """Let go of the files' pages; they are read again when touched."""
        for pages in self._pages.values():
            pages.madvise(mmap.MADV_DONTNEED)

    def _add(self, shard: str) -> None:
        path = self.path / shard
        try:
            with path.open("rb") as file:
                self._pages[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            status = path.stat()
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            raise SetupError(f"{path} cannot be read: {error}") from error
        self._bytes[shard] = np.frombuffer(self._pages[shard], dtype=np.uint8)
        header = _header(path, self._bytes[shard])
        digest = hashlib.sha256(header).hexdigest()
        self.identity.append(ShardIdentity(shard, status.st_size, status.st_mtime_ns, digest))
        for found in _ranges(path, header, status.st_size):
            if found.name in self.ranges:
                raise SetupError(f"{self.path}: tensor {found.name} is in {self.ranges[found.name].shard} and {shard}")
            self.ranges[found.name] = found

    def _compare(self, listed: Mapping[str, str]) -> None:
        for name, shard in listed.items():
            if name not in self.ranges or self.ranges[name].shard != shard:
                raise SetupError(f"{self.path / INDEX_NAME}: tensor {name} is not in {shard}")
        surplus = [name for name in self.ranges if name not in listed]
        if surplus:
            where = self.ranges[surplus[0]].shard
            raise SetupError(f"{self.path / INDEX_NAME} does not list tensor {surplus[0]}, which is in {where}")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _read_index(path: Path) -> dict[str, str] | None:
    index = path / INDEX_NAME
    if not index.exists():
        return None
    try:
        listed = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{index} cannot be read: {error}") from error
    for shard in listed.values():
        if shard != Path(shard).name or not shard.endswith(".safetensors"):
            raise SetupError(f"{index} names {shard!r}, which is no safetensors file of this folder")
    if not listed:
        raise SetupError(f"{index} lists no tensor")
    return listed


def _only_file(path: Path) -> str:
    if (path / SINGLE_NAME).exists():
        return SINGLE_NAME
    found = sorted(file.name for file in path.glob("*.safetensors"))
    if len(found) != 1:
        raise SetupError(f"{path} has neither {SINGLE_NAME} nor {INDEX_NAME}, and {len(found)} other safetensors files")
    return found[0]


def _header(path: Path, content: NDArray[np.uint8]) -> bytes:
    if len(content) < _LENGTH_BYTES:
        raise SetupError(f"{path} has {len(content)} bytes and is no safetensors file")
    header_bytes = int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    if header_bytes > min(_MAX_HEADER_BYTES, len(content) - _LENGTH_BYTES):
        raise SetupError(f"{path} is cut or no safetensors file: a header of {header_bytes} bytes in {len(content)}")
    return content[_LENGTH_BYTES : _LENGTH_BYTES + header_bytes].tobytes()


def _ranges(path: Path, header: bytes, file_bytes: int) -> list[TensorRange]:
    """Every tensor of one file; together they fill it without a gap."""
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(text, type=_Entry) for name, text in raw.items()}
    except msgspec.DecodeError as error:
        raise SetupError(f"{path} has a header that cannot be read: {error}") from error
    start = _LENGTH_BYTES + len(header)
    ranges = [_range(path, name, entry, start) for name, entry in entries.items()]
    end = start
    for found in sorted(ranges, key=lambda found: (found.offset, found.num_bytes)):
        if found.offset != end:
            raise SetupError(f"{path}: tensor {found.name} begins at byte {found.offset}, expected {end}")
        end += found.num_bytes
    if end != file_bytes:
        what = "cut" if file_bytes < end else "longer than its header says"
        raise SetupError(f"{path} is {what}: {file_bytes} bytes, expected {end}")
    return ranges


def _range(path: Path, name: str, entry: _Entry, start: int) -> TensorRange:
    if entry.dtype not in DTYPE_BYTES:
        raise SetupError(f"{path}: tensor {name} is stored as {entry.dtype}; supported: {', '.join(DTYPE_BYTES)}")
    first, end = entry.data_offsets
    expected_bytes = prod(entry.shape) * DTYPE_BYTES[entry.dtype]
    if min(entry.shape, default=1) < 1 or first < 0 or end - first != expected_bytes:
        raise SetupError(f"{path}: tensor {name} has {end - first} bytes, {entry.shape} of {entry.dtype} differs")
    return TensorRange(name, entry.dtype, tuple(entry.shape), path.name, start + first, expected_bytes)
