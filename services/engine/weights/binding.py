"""Weights into the arena: a checkpoint fills the planned regions, then views of them become DecoderWeights.

Owns the views and the copy into device memory; `reserve` said where, a checkpoint says what.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.arena import Arena
from engine.ops.linear import DenseMatrix, Matrix, QuantizedMatrix
from engine.spec import ModelSpec
from engine.weights.checkpoint import Checkpoint
from engine.weights.fill import Progress
from engine.weights.forms import DenseForm, MatrixForm
from engine.weights.need import AttentionNeed, DecoderNeed, DeltaNeed, LayerNeed, MatrixNeed, MtpNeed, VectorNeed
from engine.weights.reserve_order import EMBEDDING_REGION
from engine.weights.schema import decoder_need
from engine.weights.tensors import (
    AttentionWeights,
    DecoderWeights,
    DeltaWeights,
    LayerWeights,
    MlpWeights,
    MtpWeights,
)


def load_weights(
    spec: ModelSpec,
    checkpoint: Checkpoint,
    arena: Arena,
    on_progress: Progress,
    embedding_arena: Arena | None = None,
) -> DecoderWeights:
    """Fill the regions that reserve_weights planned and return views of them.

    embedding_arena holds the embedding where reserve_weights was given a builder for it. on_progress(done_bytes,
    total_bytes) counts bytes of the checkpoint.
    Raises: SetupError naming a tensor whose values are not finite.
    """
    need = decoder_need(spec)
    arenas = _Arenas(arena, embedding_arena or arena)
    checkpoint.fill(spec, need, arenas, on_progress)
    return Binder(checkpoint.forms(spec, need), arenas).bind(need)


class _Arenas:
    """Finds a region in the arena it was planned for, and writes it."""

    def __init__(self, arena: Arena, embedding_arena: Arena) -> None:
        self._arena = arena
        self._embedding_arena = embedding_arena

    def tensor(self, region: str) -> torch.Tensor:
        apart = region.startswith(f"{EMBEDDING_REGION}.")
        return (self._embedding_arena if apart else self._arena).tensor(region)

    def put(self, region: str, first_row: int, rows: NDArray[Any]) -> None:
        """See RegionSink; on the calling thread when the arena is on the host."""
        target = self.tensor(region)[first_row : first_row + len(rows)]
        if target.dtype == torch.bfloat16:
            target = target.view(torch.int16)
            rows = rows.view(np.int16)
        if target.device.type == "cpu":
            np.copyto(target.numpy(), rows, casting="no")
        else:
            target.copy_(torch.from_numpy(rows))


class Regions(Protocol):
    """Where a region's bytes are."""

    def tensor(self, region: str) -> torch.Tensor:
        """The region's tensor, of the form's shape and dtype."""
        ...


class Binder:
    """Grows DecoderWeights along the tree of needs."""

    def __init__(self, forms: Mapping[str, MatrixForm], regions: Regions) -> None:
        self._forms = forms
        self._regions = regions

    def bind(self, need: DecoderNeed) -> DecoderWeights:
        """Views of everything; none of it is read."""
        embedding = self._matrix(need.embedding)
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(layer) for layer in need.layers),
            final_norm=self._vector(need.final_norm),
            head=embedding if need.head is None else self._matrix(need.head),
            mtp=None if need.mtp is None else self._mtp(need.mtp),
        )

    def _layer(self, need: LayerNeed) -> LayerWeights:
        mixer = need.mixer
        return LayerWeights(
            mixer_norm=self._vector(need.mixer_norm),
            mixer=self._delta(mixer) if isinstance(mixer, DeltaNeed) else self._attention(mixer),
            mlp_norm=self._vector(need.mlp_norm),
            mlp=MlpWeights(self._matrix(need.mlp.gate_up), self._matrix(need.mlp.down)),
        )

    def _attention(self, need: AttentionNeed) -> AttentionWeights:
        return AttentionWeights(
            qkv=self._matrix(need.qkv),
            output=self._matrix(need.output),
            q_norm=None if need.q_norm is None else self._vector(need.q_norm),
            k_norm=None if need.k_norm is None else self._vector(need.k_norm),
        )

    def _delta(self, need: DeltaNeed) -> DeltaWeights:
        return DeltaWeights(
            inputs=self._matrix(need.inputs),
            gates=self._matrix(need.gates),
            conv=self._vector(need.conv),
            decay_log=self._vector(need.decay_log),
            dt_bias=self._vector(need.dt_bias),
            norm=self._vector(need.norm),
            output=self._matrix(need.output),
        )

    def _mtp(self, need: MtpNeed) -> MtpWeights:
        return MtpWeights(
            embedding_norm=self._vector(need.embedding_norm),
            hidden_norm=self._vector(need.hidden_norm),
            projection=self._matrix(need.projection),
            layer=self._layer(need.layer),
            final_norm=self._vector(need.final_norm),
        )

    def _vector(self, need: VectorNeed) -> torch.Tensor:
        return self._regions.tensor(need.region)

    def _matrix(self, need: MatrixNeed) -> Matrix:
        form = self._forms[need.region]
        if isinstance(form, DenseForm):
            return DenseMatrix(self._regions.tensor(f"{need.region}.weight"))
        return QuantizedMatrix(
            codes=self._regions.tensor(f"{need.region}.codes"),
            scales=self._regions.tensor(f"{need.region}.scales"),
            minima=self._regions.tensor(f"{need.region}.minima") if form.has_minimum else None,
            bits=form.bits,
            group_size=form.group_size,
            num_rows=need.num_rows,
            num_cols=need.num_cols,
            high=self._regions.tensor(f"{need.region}.high") if form.bits in (5, 6) else None,
        )
