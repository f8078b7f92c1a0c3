"""A root-mean-square norm with its weight. Owns the pairing of weight, epsilon and offset; the formula is the op's."""

from dataclasses import dataclass

import torch

from engine.ops.rmsnorm import rmsnorm


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Shapes: weight [C] fp32, as stored: offset is added to it."""

    weight: torch.Tensor
    eps: float
    offset: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised rows, a new tensor."""
        return rmsnorm(x, self.weight, eps=self.eps, offset=self.offset)
