"""Fixtures of session and engine: the tiny model's home and one ready engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import Engine
from support.tiny_engine import make_home, start_engine


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def engine(tiny_home: Path) -> Iterator[Engine]:
    engine = start_engine(tiny_home)
    yield engine
    assert engine.close(10.0)
