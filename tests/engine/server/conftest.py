"""Fixtures of the server's tests: the tiny model behind a real socket, in this process."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.served_engine import Serve, Served, serve_tiny
from support.tiny_engine import make_home


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def serve(tiny_home: Path) -> Iterator[Serve]:
    with ExitStack() as servers:

        def start(**options: Any) -> Served:
            return servers.enter_context(serve_tiny(tiny_home, **options))

        yield start


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve()
