"""fp32 copies of the decoder's matrices as the reference executor multiplies them. Owns the copies, not the truth.

The packed weights stay what they are; these exist because expanding a matrix at every step costs more than the step.
An executor that multiplies packed weights plans none of these regions.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.arena import Arena
from engine.memory.layout import Handle
from engine.ops import gated_delta
from engine.ops.linear import Matrix, take_rows
from engine.weights.tensors import AttentionWeights, DecoderWeights, DeltaWeights, LayerWeights, MtpWeights

_CHUNK_ELEMENTS = 1 << 22  # bounds the temporaries of one expansion


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A right operand [in, out] fp32, contiguous; host is the same bytes for NumPy when they are in host memory.

    One row times a matrix only streams the matrix. NumPy's BLAS does that at the speed of memory on one core, torch's
    at half to three quarters of it (docs/notes/engine.md); with more rows they are equal and torch uses every core.
    """

    matrix: torch.Tensor
    host: NDArray[np.float32] | None

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """out = x matrix.

        Shapes:  x [T, in], out [T, out] fp32, rows contiguous.
        """
        if self.host is not None and x.shape[0] == 1:
            np.dot(x[0].numpy(), self.host, out=out[0].numpy())
        else:
            torch.mm(x, self.matrix, out=out)

    def add_product(self, x: torch.Tensor, total: torch.Tensor) -> None:
        """total += x matrix.

        Shapes:  x [T, in], total [T, out] fp32, rows contiguous.
        """
        if self.host is not None and x.shape[0] == 1:
            row = total[0].numpy()
            row += np.dot(x[0].numpy(), self.host)
        else:
            total.addmm_(x, self.matrix)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMatrices:
    """An attention layer's products."""

    qkv: Operand
    output: Operand


@dataclass(frozen=True, slots=True, eq=False)
class DeltaMatrices:
    """A delta layer's products, and the constants of its core."""

    inputs: Operand
    gates: Operand
    output: Operand
    core: gated_delta.DeltaWeights


@dataclass(frozen=True, slots=True, eq=False)
class LayerMatrices:
    """One layer's products."""

    mixer: AttentionMatrices | DeltaMatrices
    gate_up: Operand
    down: Operand


@dataclass(frozen=True, slots=True, eq=False)
class MtpMatrices:
    """The draft head's products; its logits are the decoder's head's."""

    projection: Operand
    layer: LayerMatrices


@dataclass(frozen=True, slots=True, eq=False)
class DecoderMatrices:
    """Every product of a forward pass; mtp is None where no draft head is planned."""

    layers: tuple[LayerMatrices, ...]
    head: Operand
    mtp: MtpMatrices | None


def expand_weights(weights: DecoderWeights, arena: Arena, handles: dict[str, Handle]) -> DecoderMatrices:
    """Fill the regions and return their views."""
    expander = _Expander(arena, handles)
    layers = tuple(expander.layer(f"layers.{index}", layer) for index, layer in enumerate(weights.layers))
    mtp = None
    if weights.mtp is not None and "mtp.projection" in handles:
        mtp = expander.mtp(weights.mtp)
    return DecoderMatrices(layers, expander.operand("head", weights.head), mtp)


@dataclass(frozen=True, slots=True, eq=False)
class _Expander:
    arena: Arena
    handles: dict[str, Handle]

    def layer(self, name: str, weights: LayerWeights) -> LayerMatrices:
        mixer = weights.mixer
        return LayerMatrices(
            mixer=self._delta(name, mixer) if isinstance(mixer, DeltaWeights) else self._attention(name, mixer),
            gate_up=self.operand(f"{name}.gate_up", weights.mlp.gate_up),
            down=self.operand(f"{name}.down", weights.mlp.down),
        )

    def mtp(self, weights: MtpWeights) -> MtpMatrices:
        return MtpMatrices(self.operand("mtp.projection", weights.projection), self.layer("mtp.layer", weights.layer))

    def operand(self, name: str, matrix: Matrix) -> Operand:
        """Write the transposed matrix into its region [in, out], a slice of rows at a time."""
        target = self.arena.tensor(self.handles[name])
        step = max(1, _CHUNK_ELEMENTS // matrix.num_cols)
        for start in range(0, matrix.num_rows, step):
            rows = torch.arange(start, min(start + step, matrix.num_rows), device=target.device)
            target[:, start : start + step] = take_rows(matrix, rows).t()
        return Operand(target, target.numpy() if target.device.type == "cpu" else None)

    def _attention(self, name: str, weights: AttentionWeights) -> AttentionMatrices:
        return AttentionMatrices(
            self.operand(f"{name}.qkv", weights.qkv), self.operand(f"{name}.output", weights.output)
        )

    def _delta(self, name: str, weights: DeltaWeights) -> DeltaMatrices:
        taps = self.arena.tensor(self.handles[f"{name}.taps"]).copy_(weights.conv.t())
        decay_rate = self.arena.tensor(self.handles[f"{name}.decay_rate"]).copy_(-weights.decay_log.exp())
        return DeltaMatrices(
            inputs=self.operand(f"{name}.inputs", weights.inputs),
            gates=self.operand(f"{name}.gates", weights.gates),
            output=self.operand(f"{name}.output", weights.output),
            core=gated_delta.DeltaWeights(taps, decay_rate, weights.dt_bias),
        )
