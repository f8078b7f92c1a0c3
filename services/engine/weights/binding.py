"""Weights into the arena: reads the checkpoint in row chunks, undoes its row order, packs, binds views.

Owns the copy; `reserve` said where, `schema` said what, `blocks` knows the stored bits. Values that are not finite are
refused by name: a poisoned weight would poison every token.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.memory.arena import Arena
from engine.ops.linear import DenseMatrix, Matrix, QuantizedMatrix, pack_codes
from engine.spec import ModelSpec
from engine.weights.blocks import CodeRows, decode_codes, decode_floats
from engine.weights.checkpoint import Checkpoint, StorageKind
from engine.weights.reserve import packed_kind
from engine.weights.schema import DecoderNeed, LayerNeed, MatrixNeed, Part, VectorNeed, check_checkpoint, decoder_need
from engine.weights.tensors import AttentionWeights, DecoderWeights, LayerWeights, MlpWeights

Progress = Callable[[int, int], None]
_CHUNK_ELEMENTS = 1 << 20  # temporaries of a chunk stay in the processor's cache


def load_weights(spec: ModelSpec, checkpoint: Checkpoint, arena: Arena, on_progress: Progress) -> DecoderWeights:
    """Fill the regions that reserve_weights(spec, checkpoint, builder) planned and return views of them.

    on_progress(done_bytes, total_bytes) is called after every tensor, with bytes of the checkpoint.
    Raises: SetupError naming a tensor with non-finite scales, minima or weights.
    """
    need = decoder_need(spec)
    check_checkpoint(spec, need, checkpoint)
    return _Loader(checkpoint, arena, on_progress).load(need)


class _Loader:
    """One pass over the checkpoint; holds what every step needs and the count of bytes done."""

    def __init__(self, checkpoint: Checkpoint, arena: Arena, on_progress: Progress) -> None:
        self._checkpoint = checkpoint
        self._arena = arena
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(entry.bytes for entry in checkpoint.directory.tensors)

    def load(self, need: DecoderNeed) -> DecoderWeights:
        embedding = self._matrix(need.embedding)
        layers = tuple(self._layer(layer) for layer in need.layers)
        final_norm = self._vector(need.final_norm)
        head = embedding if need.head is None else self._matrix(need.head)
        return DecoderWeights(embedding, layers, final_norm, head)

    def _layer(self, need: LayerNeed) -> LayerWeights:
        qkv, output = self._matrix(need.mixer.qkv), self._matrix(need.mixer.output)
        return LayerWeights(
            mixer_norm=self._vector(need.mixer_norm),
            mixer=AttentionWeights(qkv, output, q_norm=None, k_norm=None),
            mlp_norm=self._vector(need.mlp_norm),
            mlp=MlpWeights(self._matrix(need.mlp.gate_up), self._matrix(need.mlp.down)),
        )

    def _vector(self, need: VectorNeed) -> torch.Tensor:
        kind = self._checkpoint.kind(need.tensor)
        values = decode_floats(self._checkpoint.raw(need.tensor), kind)
        self._require_finite(need.tensor, "weights", values)
        target = self._arena.tensor(need.region)
        _write(target, values)
        self._count(need.tensor)
        return target

    def _matrix(self, need: MatrixNeed) -> Matrix:
        kind = packed_kind(need, self._checkpoint)
        if kind is None:
            weight = self._arena.tensor(f"{need.region}.weight")
            first_row = 0
            for part in need.parts:
                self._expand(part, weight[first_row : first_row + part.num_rows])
                self._count(part.tensor)
                first_row += part.num_rows
            return DenseMatrix(weight)
        matrix = self._packed_matrix(need, kind)
        first_row = 0
        for part in need.parts:
            self._pack(part, kind, matrix, first_row)
            self._count(part.tensor)
            first_row += part.num_rows
        return matrix

    def _packed_matrix(self, need: MatrixNeed, kind: StorageKind) -> QuantizedMatrix:
        assert kind.bits is not None
        return QuantizedMatrix(
            codes=self._arena.tensor(f"{need.region}.codes"),
            scales=self._arena.tensor(f"{need.region}.scales"),
            minima=self._arena.tensor(f"{need.region}.minima") if kind.has_minimum else None,
            bits=kind.bits,
            group_size=kind.block_elements,
            num_rows=need.num_rows,
            num_cols=need.num_cols,
        )

    def _pack(self, part: Part, kind: StorageKind, matrix: QuantizedMatrix, first_row: int) -> None:
        """Copy codes, scales and minima of one part into its rows of the matrix."""
        for start, raw in self._chunks(part):
            rows = self._decode(part, raw, kind)
            span = slice(first_row + start, first_row + start + raw.shape[0])
            _write(matrix.codes[span], pack_codes(rows.codes, matrix.bits))
            _write(matrix.scales[:, span], rows.scales.T)
            if matrix.minima is not None and rows.minima is not None:
                _write(matrix.minima[:, span], rows.minima.T)

    def _expand(self, part: Part, target: torch.Tensor) -> None:
        """Write one part as fp32 into its rows."""
        kind = self._checkpoint.kind(part.tensor)
        for start, raw in self._chunks(part):
            values = decode_floats(raw, kind)
            self._require_finite(part.tensor, "weights", values)
            _write(target[start : start + raw.shape[0]], values)

    def _decode(self, part: Part, raw: NDArray[np.uint8], kind: StorageKind) -> CodeRows:
        rows = decode_codes(raw, kind)
        self._require_finite(part.tensor, "scales", rows.scales)
        if rows.minima is not None:
            self._require_finite(part.tensor, "minima", rows.minima)
        return rows

    def _chunks(self, part: Part) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """(first row, raw rows) in the engine's row order."""
        raw = self._checkpoint.raw(part.tensor)
        order = None if part.paired_heads is None else _half_split_order(part.num_rows, part.paired_heads)
        step = max(1, _CHUNK_ELEMENTS // part.num_cols)
        for start in range(0, part.num_rows, step):
            end = min(start + step, part.num_rows)
            yield start, raw[start:end] if order is None else raw[order[start:end]]

    def _require_finite(self, tensor: str, what: str, values: NDArray[np.floating]) -> None:
        if not np.isfinite(values).all():
            raise SetupError(f"{self._checkpoint.path}: tensor {tensor} has {what} that are not finite")

    def _count(self, tensor: str) -> None:
        self._done_bytes += self._checkpoint.entries[tensor].bytes
        self._on_progress(self._done_bytes, self._total_bytes)


def _half_split_order(num_rows: int, num_heads: int) -> NDArray[np.intp]:
    """Stored row of each engine row: a head's stored rows go 0, half, 1, half + 1, ..."""
    pairs = np.arange(num_rows).reshape(num_heads, -1, 2)
    return pairs.swapaxes(1, 2).reshape(-1)


def _write(target: torch.Tensor, values: NDArray[np.generic]) -> None:
    """Copy host values into a view of the arena, on the calling thread when the arena is on the host too."""
    if target.device.type == "cpu":
        np.copyto(target.numpy(), values, casting="no")
    else:
        target.copy_(torch.from_numpy(values))
