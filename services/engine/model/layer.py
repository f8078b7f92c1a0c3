"""A decoder layer: norm, mixer, norm, feed-forward. Owns this order, and which blocks a spec and its weights make."""

from dataclasses import dataclass

import torch

from engine.model.attention_block import AttentionBlock
from engine.model.delta_block import DeltaBlock
from engine.model.expanded import AttentionMatrices, DeltaMatrices, LayerMatrices
from engine.model.mlp import run_mlp
from engine.model.norm import Norm
from engine.model.span import Span
from engine.model.workspace import Workspace
from engine.spec import ModelSpec
from engine.state.kv_cache import KvCache
from engine.state.recurrent import DeltaStates
from engine.weights.tensors import AttentionWeights, DeltaWeights, LayerWeights


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Adds its mixer and its feed-forward to the residual stream of a span."""

    mixer_norm: Norm
    mixer: AttentionBlock | DeltaBlock
    mlp_norm: Norm
    matrices: LayerMatrices

    def run(self, span: Span) -> None:
        """Compute the span's positions; see the blocks for what is written."""
        self.mixer.run(self.mixer_norm, span)
        for piece in span.pieces:
            run_mlp(self.mlp_norm(piece.rows.residual), piece.rows, self.matrices)


@dataclass(frozen=True, slots=True, eq=False)
class LayerBuilder:
    """Makes layers over what they share; states is None where no layer is recurrent, mtp_cache without an MTP head."""

    spec: ModelSpec
    workspace: Workspace
    cache: KvCache
    mtp_cache: KvCache | None
    states: DeltaStates | None

    def norm(self, weight: torch.Tensor) -> Norm:
        """A norm of the model, with its offset."""
        return Norm(weight, self.spec.norm_eps, self.spec.norm_offset)

    def mtp_layer(self, weights: LayerWeights, matrices: LayerMatrices) -> Layer:
        """The MTP head's one layer, which has a cache of its own."""
        assert self.mtp_cache is not None and isinstance(weights.mixer, AttentionWeights)
        return self._layer(weights, matrices, self._attention(weights.mixer, matrices.mixer, self.mtp_cache, 0))

    def layers(self, weights: tuple[LayerWeights, ...], matrices: tuple[LayerMatrices, ...]) -> tuple[Layer, ...]:
        """All layers of the schedule."""
        kinds = self.spec.schedule
        slots = [kinds[:index].count(kind) for index, kind in enumerate(kinds)]
        return tuple(self._scheduled(*parts) for parts in zip(weights, matrices, slots, strict=True))

    def _scheduled(self, weights: LayerWeights, matrices: LayerMatrices, slot: int) -> Layer:
        """slot counts the layers of this kind: attention's place in the cache, delta's in the states."""
        if isinstance(weights.mixer, DeltaWeights):
            return self._layer(weights, matrices, self._delta(weights.mixer, matrices.mixer, slot))
        return self._layer(weights, matrices, self._attention(weights.mixer, matrices.mixer, self.cache, slot))

    def _layer(self, weights: LayerWeights, matrices: LayerMatrices, mixer: AttentionBlock | DeltaBlock) -> Layer:
        return Layer(self.norm(weights.mixer_norm), mixer, self.norm(weights.mlp_norm), matrices)

    def _attention(
        self, weights: AttentionWeights, matrices: AttentionMatrices | DeltaMatrices, cache: KvCache, slot: int
    ) -> AttentionBlock:
        assert isinstance(matrices, AttentionMatrices)
        return AttentionBlock(
            dims=self.spec.attention,
            slot=slot,
            cache=cache,
            workspace=self.workspace,
            matrices=matrices,
            q_norm=None if weights.q_norm is None else self.norm(weights.q_norm),
            k_norm=None if weights.k_norm is None else self.norm(weights.k_norm),
        )

    def _delta(self, weights: DeltaWeights, matrices: AttentionMatrices | DeltaMatrices, slot: int) -> DeltaBlock:
        assert isinstance(matrices, DeltaMatrices) and self.spec.delta is not None and self.states is not None
        return DeltaBlock(
            dims=self.spec.delta,
            state=self.states.layers[slot],
            record=self.states.records[slot],
            matrices=matrices,
            head_norm=Norm(weights.norm, self.spec.norm_eps, offset=0.0),
        )
