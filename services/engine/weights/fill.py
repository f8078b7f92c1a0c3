"""Fills the regions of a matrix or vector from a source: reads rows in chunks, checks, encodes, hands them on in order.

Owns the pass over a tensor. Where rows go is the sink's: an arena, or a file that grows. Values that are not finite are
refused by name: a poisoned weight would poison every token.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.ops.linear_layout import Bits, num_groups, num_high_bits, num_words, pack_codes, pack_high_bits
from engine.weights.forms import DenseForm, MatrixForm, PackedForm
from engine.weights.need import MatrixNeed, Part, VectorNeed
from engine.weights.quantize import GROUP_COLUMNS, quantize_rows
from engine.weights.tensor_source import TensorSource

_CHUNK_ELEMENTS = 1 << 20  # temporaries of a chunk stay in the processor's cache, and few are in flight
_MAX_AHEAD = 16
_RELEASE_CHUNKS = 64

Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Takes bytes done and bytes in all."""


class RegionSink(Protocol):
    """Takes the rows of regions; rows of one region come in order, regions of a matrix in the order of the plan."""

    def put(self, region: str, first_row: int, rows: NDArray[Any]) -> None:
        """Store rows from first_row of the region's leading axis on; bf16 comes as its bits, uint16."""
        ...


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far codes are from the numbers they stand for: sums over a matrix, both 0 where nothing was rounded."""

    squared_error: float = 0.0
    energy: float = 0.0

    @property
    def relative_error(self) -> float:
        """Root of the squared error per energy."""
        return float((self.squared_error / self.energy) ** 0.5) if self.energy > 0 else 0.0


def fill_vector(need: VectorNeed, source: TensorSource, sink: RegionSink) -> None:
    """Copy one vector.

    Raises: SetupError when a value is not finite.
    """
    values = source.read_vector(need.tensor)
    _require_finite(source, need.tensor, "weights", values)
    sink.put(need.region, 0, values)


def fill_matrix(
    need: MatrixNeed, form: MatrixForm, source: TensorSource, sink: RegionSink, executor: Executor | None = None
) -> Fidelity:
    """Fill every region of one matrix; with an executor, chunks are encoded there and arrive in order all the same.

    Raises: SetupError naming a tensor with values that are not finite or too large for an fp16 scale.
    """
    if isinstance(form, DenseForm):
        return _fill_dense(need, form, source, sink, executor)
    return _fill_packed(need, form, source, sink, executor)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows start .. stop - 1 of a part; first_row is where they begin in the matrix."""

    part: Part
    start: int
    stop: int
    first_row: int


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """One chunk as it will be stored; scales and minima are still [N, groups]."""

    codes: NDArray[np.int32]
    high: NDArray[np.uint8] | NDArray[np.int16] | None
    scales: NDArray[np.float16]
    minima: NDArray[np.float16] | None
    squared_error: float = 0.0
    energy: float = 0.0


def _fill_dense(
    need: MatrixNeed, form: DenseForm, source: TensorSource, sink: RegionSink, executor: Executor | None
) -> Fidelity:
    def encode(chunk: _Chunk) -> tuple[NDArray[Any], Fidelity]:
        values = source.read_floats(chunk.part.tensor, chunk.start, chunk.stop).values
        _require_finite(source, chunk.part.tensor, "weights", values)
        if form.dtype == "fp32":
            return values, Fidelity()
        return _to_bf16(source, chunk.part.tensor, values)

    total = Fidelity()
    for chunk, (rows, fidelity) in _in_order(need, source, encode, executor):
        sink.put(f"{need.region}.weight", chunk.first_row, rows)
        total = _add(total, fidelity)
    return total


def _fill_packed(
    need: MatrixNeed, form: PackedForm, source: TensorSource, sink: RegionSink, executor: Executor | None
) -> Fidelity:
    def encode(chunk: _Chunk) -> _Encoded:
        stored = source.tensors[chunk.part.tensor]
        return _repack(chunk, form, source) if stored.packed == form else _quantize(chunk, form, source)

    num_rows, groups = need.num_rows, num_groups(need.num_cols, form.group_size)
    scales = np.empty((groups, num_rows), dtype=np.float16)
    minima = np.empty_like(scales) if form.has_minimum else None
    high = _high_lanes(num_rows, need.num_cols, form.bits)
    total = Fidelity()
    for chunk, rows in _in_order(need, source, encode, executor):
        span = slice(chunk.first_row, chunk.first_row + chunk.stop - chunk.start)
        sink.put(f"{need.region}.codes", chunk.first_row, rows.codes)
        scales[:, span] = rows.scales.T
        if minima is not None and rows.minima is not None:
            minima[:, span] = rows.minima.T
        if high is not None and rows.high is not None:
            high[span] = rows.high
        total = _add(total, Fidelity(rows.squared_error, rows.energy))
    for suffix, whole in (("high", high), ("scales", scales), ("minima", minima)):
        if whole is not None:
            sink.put(f"{need.region}.{suffix}", 0, whole)
    return total


def _repack(chunk: _Chunk, form: PackedForm, source: TensorSource) -> _Encoded:
    """Codes, scales and minima as the source stores them."""
    rows = source.read_codes(chunk.part.tensor, chunk.start, chunk.stop)
    _require_finite(source, chunk.part.tensor, "scales", rows.scales)
    if rows.minima is not None:
        _require_finite(source, chunk.part.tensor, "minima", rows.minima)
    return _Encoded(pack_codes(rows.codes, form.bits), _pack_high(rows.codes, form.bits), rows.scales, rows.minima)


def _quantize(chunk: _Chunk, form: PackedForm, source: TensorSource) -> _Encoded:
    assert form.group_size == GROUP_COLUMNS and not form.has_minimum, f"no search for {form}"
    rows = source.read_floats(chunk.part.tensor, chunk.start, chunk.stop)
    _require_finite(source, chunk.part.tensor, "weights", rows.values)
    made = quantize_rows(rows.values, form.bits, rows.scale_hints)
    _require_range(source, chunk.part.tensor, "fp16 scales", made.scales)
    codes, high = pack_codes(made.codes, form.bits), _pack_high(made.codes, form.bits)
    return _Encoded(codes, high, made.scales, None, made.squared_error, made.energy)


def _high_lanes(num_rows: int, num_cols: int, bits: Bits) -> NDArray[np.uint8] | NDArray[np.int16] | None:
    shape = (num_rows, num_words(num_cols, bits))
    match num_high_bits(bits):
        case 1:
            return np.empty(shape, dtype=np.uint8)
        case 2:
            return np.empty(shape, dtype=np.int16)
    return None


def _pack_high(codes: NDArray[np.uint8], bits: Bits) -> NDArray[np.uint8] | NDArray[np.int16] | None:
    return pack_high_bits(codes, bits) if num_high_bits(bits) else None


def _to_bf16(source: TensorSource, tensor: str, values: NDArray[np.float32]) -> tuple[NDArray[np.uint16], Fidelity]:
    """Bits of the nearest bf16 values, ties to even."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    back = (rounded.astype(np.uint32) << 16).view(np.float32)
    _require_range(source, tensor, "bf16", back)
    lost = back - values
    return rounded, Fidelity(float(np.vdot(lost, lost)), float(np.vdot(values, values)))


def _in_order(
    need: MatrixNeed, source: TensorSource, encode: Callable[[_Chunk], Result], executor: Executor | None
) -> Iterator[tuple[_Chunk, Result]]:
    """Encoded chunks in order; neither results nor pages of the source pile up."""
    chunks = _chunks(need)
    results = map(encode, chunks) if executor is None else _few_ahead(chunks, encode, executor)
    for count, (chunk, result) in enumerate(zip(chunks, results, strict=True), start=1):
        yield chunk, result
        if count % _RELEASE_CHUNKS == 0:
            source.release()


def _few_ahead(chunks: list[_Chunk], encode: Callable[[_Chunk], Result], executor: Executor) -> Iterator[Result]:
    """Results in order, with few running ahead of the one that is taken."""
    running: deque[Future[Result]] = deque()
    for chunk in chunks:
        running.append(executor.submit(encode, chunk))
        if len(running) > _MAX_AHEAD:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _chunks(need: MatrixNeed) -> list[_Chunk]:
    chunks: list[_Chunk] = []
    first_row = 0
    step = max(1, _CHUNK_ELEMENTS // need.num_cols)
    for part in need.parts:
        for start in range(0, part.num_rows, step):
            chunks.append(_Chunk(part, start, min(start + step, part.num_rows), first_row + start))
        first_row += part.num_rows
    return chunks


def _add(left: Fidelity, right: Fidelity) -> Fidelity:
    return Fidelity(left.squared_error + right.squared_error, left.energy + right.energy)


def _require_finite(source: TensorSource, tensor: str, what: str, values: NDArray[np.floating]) -> None:
    if not np.isfinite(values).all():
        raise SetupError(f"{source.path}: tensor {source.tensors[tensor].spelling} has {what} that are not finite")


def _require_range(source: TensorSource, tensor: str, what: str, values: NDArray[np.floating]) -> None:
    if not np.isfinite(values).all():
        raise SetupError(f"{source.path}: tensor {source.tensors[tensor].spelling} has weights too large for {what}")
