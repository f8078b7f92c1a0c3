"""Mean keys and values of every layer that keeps them, over windows of text. Owns the pass over the layers.

Layers run one after the other over all windows, so each layer's weights are read once and only one is in memory.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.calibrate.streamed import OneLayer, bind_artifact
from engine.ops.linear import linear, take_rows
from engine.ops.rmsnorm import rmsnorm
from engine.spec import ModelSpec
from engine.weights.artifact import Artifact
from engine.weights.centres import KvCentres, centre_shape
from engine.weights.tensors import DecoderWeights, LayerWeights, MtpWeights

Progress = Callable[[int, int], None]
"""Takes layers done and layers in all."""


@torch.inference_mode()
def measure_centres(artifact: Artifact, windows: Sequence[NDArray[np.int64]], on_progress: Progress) -> KvCentres:
    """The centres of an artifact.

    Shapes:  windows: token ids [T], T the same multiple of 64 in all.
    Raises: SetupError when a mean is not finite.
    """
    spec = artifact.directory.spec
    weights = bind_artifact(artifact)
    ids = torch.from_numpy(np.stack(windows))  # [W, T]
    residual = torch.stack([take_rows(weights.embedding, window) for window in ids])  # [W, T, C]
    total = spec.num_layers + spec.mtp_layers
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index, layer in enumerate(weights.layers):
        means = _run_layer(spec, layer, residual)
        if spec.schedule[index] == "attention":
            found.append(means)
        artifact.release()
        on_progress(index + 1, total)
    if weights.mtp is not None:
        found.append(_run_layer(spec, weights.mtp.layer, _mtp_input(spec, weights, weights.mtp, residual, ids)))
        on_progress(total, total)
    keys, values = (torch.stack(side).numpy() for side in zip(*found, strict=True))
    assert keys.shape == values.shape == centre_shape(spec), f"{keys.shape}, expected {centre_shape(spec)}"
    if not (np.isfinite(keys).all() and np.isfinite(values).all()):
        raise SetupError(f"{artifact.path}: its keys or values over text are not finite")
    return KvCentres(keys, values)


def _run_layer(spec: ModelSpec, weights: LayerWeights, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run all windows [W, T, C] through a layer in place; mean key and value [Hkv, D], zeros of a delta layer."""
    num_windows, num_tokens, _ = residual.shape
    layer = OneLayer(spec, weights, num_tokens)
    dims = spec.attention
    sums = torch.zeros(2, dims.num_kv_heads, dims.head_dim, dtype=torch.float64)
    for window in residual:
        layer.run(window)
        for index, side in enumerate(layer.keys_and_values(num_tokens)):
            sums[index] += side.sum(dim=1, dtype=torch.float64)
    keys, values = (sums / (num_windows * num_tokens)).to(torch.float32)
    return keys, values


def _mtp_input(
    spec: ModelSpec, weights: DecoderWeights, mtp: MtpWeights, residual: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """What the MTP head's layer sees of the last layer's output [W, T, C]: each position with the token behind it.

    The last position of a window has no such token and takes its own, one pair in a window.
    """

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rmsnorm(x, weight, eps=spec.norm_eps, offset=spec.norm_offset)

    rows = []
    for window, tokens in zip(residual, ids, strict=True):
        embedded = take_rows(weights.embedding, torch.cat((tokens[1:], tokens[-1:])))
        hidden = norm(norm(window, weights.final_norm), mtp.hidden_norm)
        rows.append(linear(torch.cat((norm(embedded, mtp.embedding_norm), hidden), dim=1), mtp.projection))
    return torch.stack(rows)
