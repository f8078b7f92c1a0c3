"""fp32 copies of the decoder's matrices as the reference executor multiplies them. Owns the copies, not the truth.

The packed weights stay what they are; these exist because expanding a matrix at every step costs more than the step.
An executor that multiplies packed weights plans none of these regions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.arena import Arena
from engine.memory.layout import Handle
from engine.ops.linear import Matrix, take_rows
from engine.weights.tensors import AttentionWeights, DecoderWeights

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
class LayerMatrices:
    """One layer's products."""

    qkv: Operand
    output: Operand
    gate_up: Operand
    down: Operand


@dataclass(frozen=True, slots=True, eq=False)
class DecoderMatrices:
    """Every product of a forward pass."""

    layers: tuple[LayerMatrices, ...]
    head: Operand


def expand_weights(weights: DecoderWeights, arena: Arena, handles: dict[str, Handle]) -> DecoderMatrices:
    """Fill the regions and return their views."""
    operands = {name: _expand(matrix, arena.tensor(handles[name])) for name, matrix in _named_matrices(weights)}
    layers = tuple(
        LayerMatrices(
            qkv=operands[f"layers.{index}.qkv"],
            output=operands[f"layers.{index}.output"],
            gate_up=operands[f"layers.{index}.gate_up"],
            down=operands[f"layers.{index}.down"],
        )
        for index in range(len(weights.layers))
    )
    return DecoderMatrices(layers, operands["head"])


def _named_matrices(weights: DecoderWeights) -> Iterator[tuple[str, Matrix]]:
    yield "head", weights.head
    for index, layer in enumerate(weights.layers):
        assert isinstance(layer.mixer, AttentionWeights)
        yield f"layers.{index}.qkv", layer.mixer.qkv
        yield f"layers.{index}.output", layer.mixer.output
        yield f"layers.{index}.gate_up", layer.mlp.gate_up
        yield f"layers.{index}.down", layer.mlp.down


def _expand(matrix: Matrix, operand: torch.Tensor) -> Operand:
    """Write the transposed matrix into its region [in, out], a slice of rows at a time."""
    step = max(1, _CHUNK_ELEMENTS // matrix.num_cols)
    for start in range(0, matrix.num_rows, step):
        rows = torch.arange(start, min(start + step, matrix.num_rows), device=operand.device)
        operand[:, start : start + step] = take_rows(matrix, rows).t()
    return Operand(operand, operand.numpy() if operand.device.type == "cpu" else None)
