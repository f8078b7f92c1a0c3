"""Fake stacks: one per test, with an environment of its own or the one made for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launcher_stack import FakeStack, open_fake_stack


@pytest.fixture(scope="session")
def made_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with open_fake_stack(tmp_path_factory.mktemp("made")) as stack:
        assert stack.run("models").returncode == 0
        return stack.venv


@pytest.fixture
def stack(tmp_path: Path, made_venv: Path) -> Iterator[FakeStack]:
    """Nothing is left to install."""
    with open_fake_stack(tmp_path, made_venv) as opened:
        yield opened


@pytest.fixture
def new_stack(tmp_path: Path) -> Iterator[FakeStack]:
    """Nothing is installed yet."""
    with open_fake_stack(tmp_path) as opened:
        yield opened
