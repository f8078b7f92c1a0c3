"""Fixtures of the hybrid tests: the random models, each made once, with what the library's own two ways differ by."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

# Head ratios 1:1, 2:1 and 3:1, tied and not, odd widths, one attention layer to two, heads of 32 to 256.
SHAPES = (
    Shape(),
    Shape(tied=True),
    Shape(value_heads=2),
    Shape(value_heads=4, tied=True),
    Shape(heads=6, head_dim=64, hidden=96),
    Shape(heads=2, kv_heads=1, head_dim=256, hidden=128, inner=256, delta_dim=32),
    Shape(layers=8, hidden=128, head_dim=64, key_heads=1, value_heads=3),
    Shape(layers=8, key_heads=4, value_heads=4, tied=True),
    Shape(kv_heads=4, key_heads=3, delta_dim=24, hidden=48, inner=96),
    Shape(heads=1, kv_heads=1, key_heads=1, value_heads=1, hidden=32, inner=64),
    Shape(layers=5, delta_dim=8, vocab=1031, tied=True),
    Shape(heads=8, head_dim=128, hidden=192, inner=320, value_heads=4, delta_dim=32),
)


@dataclass(frozen=True)
class Oracle:
    """The library's logits [T, vocab] of some ids, and how far its single steps are from them."""

    ids: Ids
    logits: Floats
    drift: float


@pytest.fixture(scope="session")
def make_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Shape], Hybrid]:
    @cache
    def make(shape: Shape) -> Hybrid:
        return Hybrid(tmp_path_factory.mktemp("hybrid") / "model", shape, seed=1 + sum(str(shape).encode()) % 1000)

    return make


@pytest.fixture(scope="session")
def make_oracle(make_hybrid: Callable[[Shape], Hybrid]) -> Callable[[Shape, int], Oracle]:
    @cache
    def make(shape: Shape, length: int) -> Oracle:
        hybrid = make_hybrid(shape)
        ids = hybrid.ids(length, seed=length)
        logits = hybrid.logits(ids)
        return Oracle(ids, logits, float(np.abs(hybrid.logits(ids, [1] * length) - logits).max()))

    return make
