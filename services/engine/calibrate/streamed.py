"""An artifact's weights where they lie in its file, and one layer of them at a time made ready to compute.

Owns the views and the memory of the one layer. The decoder's own blocks compute it; nothing of the model but this layer
is in memory, so a model far larger than the machine's can be run over a few windows of text.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import torch

from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.model.expanded import expand_weights
from engine.model.layer import LayerBuilder
from engine.model.positions import text_positions
from engine.model.reserve import reserve_expanded, reserve_workspace
from engine.model.span import make_span
from engine.model.workspace import Workspace
from engine.ops.kv_layout import kv_layout
from engine.ops.linear import DenseMatrix
from engine.spec import ModelSpec
from engine.state.kv_cache import KvCache
from engine.state.recurrent import DeltaStates
from engine.state.reserve import reserve_cache, reserve_delta_state, reserve_replay
from engine.weights.artifact import Artifact
from engine.weights.binding import Binder
from engine.weights.schema import decoder_need
from engine.weights.tensors import DecoderWeights, DeltaWeights, LayerWeights


class MappedRegions:
    """Tensors of an artifact's regions, views of the mapped file."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._records = {record.name: record for record in artifact.directory.regions}

    def tensor(self, region: str) -> torch.Tensor:
        """See Regions."""
        record = self._records[region]
        rows = self._artifact.rows(record)
        match record.dtype:
            case "fp32":
                return torch.from_numpy(rows.view(np.float32))
            case "fp16":
                return torch.from_numpy(rows.view(np.float16))
            case "bf16":
                return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(rows)


def bind_artifact(artifact: Artifact) -> DecoderWeights:
    """All weights, none of them read yet."""
    need = decoder_need(artifact.directory.spec)
    forms = artifact.forms(artifact.directory.spec, need)
    return Binder(forms, MappedRegions(artifact)).bind(need)


class OneLayer:
    """A layer with fp32 matrices and a state for one window; empty before every run."""

    def __init__(self, spec: ModelSpec, weights: LayerWeights, window_tokens: int) -> None:
        """Effects: expands the layer's matrices."""
        is_delta = isinstance(weights.mixer, DeltaWeights)
        alone = replace(
            spec,
            schedule=("delta" if is_delta else "attention",),
            delta=spec.delta if is_delta else None,
            vocab_size=1,
            mtp_layers=0,
            dead_token_rows=0,
        )
        builder = LayoutBuilder()
        layout = kv_layout("fp32", spec.attention.num_kv_heads, spec.attention.head_dim)
        cache = reserve_cache(builder, "kv", layout, 1, window_tokens)
        workspace = reserve_workspace(builder, alone, window_tokens, window_tokens, 1)
        expanded = reserve_expanded(builder, alone, with_mtp=False)
        state = reserve_delta_state(builder, "state", alone, "fp32") if is_delta else None
        replay = reserve_replay(builder, "replay", alone, 1, "fp32") if is_delta else None
        arena = Arena(builder.plan(), torch.device("cpu"))
        self._dims: Final = spec.attention
        self._workspace = Workspace(arena, workspace)
        self._cache = KvCache(arena, "fp32", cache, (None, None))
        self._states = None if state is None or replay is None else DeltaStates(arena, state, replay)
        nothing = DenseMatrix(torch.zeros(1, spec.hidden_size))
        only = DecoderWeights(nothing, (weights,), torch.zeros(spec.hidden_size), nothing)
        matrices = expand_weights(only, arena, expanded)
        layers = LayerBuilder(alone, self._workspace, self._cache, None, self._states)
        self._layer = layers.layers(only.layers, matrices.layers)[0]

    def run(self, residual: torch.Tensor) -> None:
        """Compute a whole window in place.

        Shapes:  residual [T, C] fp32, T a multiple of 64 up to the planned window.
        """
        num_tokens = residual.shape[0]
        if self._states is not None:
            self._states.clear()
        positions = torch.from_numpy(text_positions(0, num_tokens))
        span = make_span("chunk", self._dims, self._workspace, 0, positions, num_tokens)
        span.rows.residual.copy_(residual)
        self._layer.run(span)
        residual.copy_(span.rows.residual)

    def keys_and_values(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the run left in the cache: rotated keys and plain values [Hkv, T, D], valid until the next run."""
        view = self._cache.view(0, num_tokens)
        return view.keys, view.values
