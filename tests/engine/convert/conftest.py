"""One small random checkpoint, written once: rows of 200 columns give a short last group and a tail of 25 words."""

from pathlib import Path

import pytest

from support.hybrid_checkpoint import Shape, Values, random_values, stored_values, write_checkpoint

SHAPE = Shape(tied=False, inner=200)


@pytest.fixture(scope="session")
def values() -> Values:
    return random_values(SHAPE)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, values: Values) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "source", SHAPE, stored_values(values))
