"""The engine's own weights format: one file of bytes laid out as the arena's, and one that says what they are.

Owns the format's description and its reader; `convert` writes it. weights.bin holds the regions of the memory plan
back to back, each from a multiple of 256 on (zeros between), matrices first, then vectors, in the order of `schema`; a
region is its tensor's bytes, little-endian, rows first. weights.json lists them with shape, dtype, offset and SHA-256,
and for every matrix bits, group and the error of quantisation. What codes mean, and the tail rule for columns that are
no multiple of a superblock, is `ops/linear`'s contract, whose layout version is recorded.
"""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.memory.layout import DType, LayoutBuilder
from engine.ops.linear_layout import LAYOUT_VERSION, Bits
from engine.spec import ModelSpec, describe_differences
from engine.weights.fill import Progress, RegionSink
from engine.weights.forms import DenseDType, DenseForm, MatrixForm, PackedForm
from engine.weights.need import DecoderNeed
from engine.weights.reserve_order import reserve_regions

ARTIFACT_VERSION: Final = 1
REGION_DTYPES: Final[Mapping[DType, str]] = {
    "fp32": "<u4", "fp16": "<u2", "bf16": "<u2", "int32": "<i4", "int16": "<i2", "uint8": "u1",
}  # fmt: skip
_EXPONENTS: Final[Mapping[DType, int]] = {"fp32": 0x7F80_0000, "fp16": 0x7C00, "bf16": 0x7F80}
_CHUNK_BYTES = 16 << 20
# A name and a default do not change what the weights are.
_NOT_COMPARED = frozenset({"name", "default_kv_format"})


class RegionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One region: bytes are its tensor's, the padding behind it is not counted."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    bytes: int
    sha256: str


class MatrixRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One matrix: bits and group_size for codes, dtype for numbers.

    relative_error is |w - stored| / |w| over the matrix (root mean square), 0 where nothing was rounded.
    """

    region: str
    bits: Bits | None
    group_size: int | None
    dtype: DenseDType | None
    relative_error: float

    def form(self) -> MatrixForm:
        """The form this record describes."""
        if self.bits is not None and self.group_size is not None:
            return PackedForm(self.bits, self.group_size)
        return DenseForm(self.dtype or "fp32")


class ArtifactDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """weights.json. source says what was converted; weights_bytes is the size of weights.bin."""

    format_version: int
    layout_version: int
    recipe: str
    source: str
    spec: ModelSpec
    weights_bytes: int
    matrices: list[MatrixRecord]
    regions: list[RegionRecord]


class _Versions(msgspec.Struct):
    format_version: int
    layout_version: int


class Artifact:
    """See Checkpoint: weights.bin, mapped, and its directory."""

    def __init__(self, weights_path: Path, directory: ArtifactDirectory) -> None:
        """Raises: SetupError when the file has another size than the directory says."""
        self.path: Final = weights_path
        self.directory: Final = directory
        actual_bytes = weights_path.stat().st_size
        if actual_bytes != directory.weights_bytes:
            raise SetupError(f"{weights_path} has {actual_bytes} bytes, expected {directory.weights_bytes}")
        with weights_path.open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._pages, dtype=np.uint8)

    def forms(self, spec: ModelSpec, need: DecoderNeed) -> Mapping[str, MatrixForm]:
        """See Checkpoint."""
        differences = describe_differences(spec, self.directory.spec, ignore=_NOT_COMPARED)
        if differences:
            raise SetupError(f"{self.path} does not hold {spec.name}: {differences}")
        forms = {record.region: record.form() for record in self.directory.matrices}
        if set(forms) != {matrix.region for matrix in need.matrices()}:
            raise SetupError(f"{self.path}: its directory lists other matrices than {spec.name} has")
        self._check_regions(spec, need, forms)
        return forms

    def fill(self, spec: ModelSpec, need: DecoderNeed, sink: RegionSink, on_progress: Progress) -> None:
        """See Checkpoint."""
        self.forms(spec, need)
        done_bytes, total_bytes = 0, sum(region.bytes for region in self.directory.regions)
        for region in self.directory.regions:
            rows = self.rows(region)
            step = max(1, _CHUNK_BYTES * len(rows) // region.bytes)
            for start in range(0, len(rows), step):
                chunk = rows[start : start + step]
                _require_finite(self.path, region, chunk)
                sink.put(region.name, start, _as_stored(region, chunk))
                done_bytes += chunk.nbytes
                self.release()
                on_progress(done_bytes, total_bytes)

    def rows(self, region: RegionRecord) -> NDArray[np.generic]:
        """A region's bits as unsigned integers or codes, of its shape; a view of the mapping."""
        span = self._bytes[region.offset : region.offset + region.bytes]
        return span.view(REGION_DTYPES[region.dtype]).reshape(region.shape)

    def release(self) -> None:
        """Let go of file pages that were read, so that memory does not grow with the file."""
        self._pages.madvise(mmap.MADV_DONTNEED)

    def _check_regions(self, spec: ModelSpec, need: DecoderNeed, forms: Mapping[str, MatrixForm]) -> None:
        """The directory's regions must be the plan's, byte for byte."""
        builder = LayoutBuilder()
        reserve_regions(spec, need, forms, builder)
        plan = builder.plan()
        wanted = [(region.name, region.dtype, region.shape, region.offset) for region in plan.regions]
        found = [(region.name, region.dtype, region.shape, region.offset) for region in self.directory.regions]
        sizes = all(r.bytes == p.tensor_bytes for r, p in zip(self.directory.regions, plan.regions, strict=False))
        if found != wanted or not sizes or self.directory.weights_bytes != plan.total_bytes:
            raise SetupError(f"{self.path}: its directory does not lay out the regions that {spec.name} needs")


def read_directory(path: Path) -> ArtifactDirectory:
    """Read weights.json.

    Raises: SetupError when it cannot be read or is of another version.
    """
    try:
        content = path.read_bytes()
        versions = msgspec.json.decode(content, type=_Versions)
        expected = (ARTIFACT_VERSION, LAYOUT_VERSION)
        if (versions.format_version, versions.layout_version) != expected:
            raise SetupError(
                f"{path} has format {versions.format_version} and layout {versions.layout_version}, this version reads "
                f"{ARTIFACT_VERSION} and {LAYOUT_VERSION}; convert the model again"
            )
        return msgspec.json.decode(content, type=ArtifactDirectory)
    except (OSError, msgspec.DecodeError, AssertionError) as error:  # AssertionError: the spec contradicts itself
        raise SetupError(f"{path} cannot be read: {error}") from error


def matrix_record(region: str, form: MatrixForm, relative_error: float) -> MatrixRecord:
    """The record of a matrix in a form."""
    if isinstance(form, DenseForm):
        return MatrixRecord(region, None, None, form.dtype, relative_error)
    assert not form.has_minimum, "artifacts hold symmetric codes"
    return MatrixRecord(region, form.bits, form.group_size, None, relative_error)


def _as_stored(region: RegionRecord, chunk: NDArray[np.generic]) -> NDArray[np.generic]:
    """Bits as the sink takes them: bf16 stays bits, the other numbers get their type back."""
    match region.dtype:
        case "fp32":
            return chunk.view(np.float32)
        case "fp16":
            return chunk.view(np.float16)
    return chunk


def _require_finite(path: Path, region: RegionRecord, chunk: NDArray[np.generic]) -> None:
    exponent = _EXPONENTS.get(region.dtype)
    if exponent is not None and bool(((chunk & chunk.dtype.type(exponent)) == exponent).any()):  # type: ignore[operator]
        raise SetupError(f"{path}: region {region.name} has values that are not finite")
