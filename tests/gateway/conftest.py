"""The gateway's fixtures: a model folder without weights, and one stack for the tests that leave it whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.text.model_text import ModelText, load_model_text
from support.gateway_stack import GatewayStack
from support.redis_server import RedisServer, running_server
from support.text_model import MODEL_NAME, make_model_folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder that holds the small text model."""
    folder = tmp_path_factory.mktemp("home")
    make_model_folder(folder)
    return folder


@pytest.fixture(scope="session")
def text(home: Path) -> ModelText:
    """The small model's text side."""
    return load_model_text(home, MODEL_NAME)


@pytest.fixture(scope="session")
def queue_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the gateway tests' own: its keys must not meet those of the queue's tests."""
    with running_server(tmp_path_factory.mktemp("gateway-redis"), fsync="no") as server:
        yield server.url


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may harm, or whose queue it shares with nobody."""
    with running_server(tmp_path / "redis", fsync="everysec") as server:
        yield server


@pytest.fixture(scope="session")
def shared_stack(home: Path, queue_url: str) -> Iterator[GatewayStack]:
    with GatewayStack(home, queue_url) as stack:
        yield stack


@pytest.fixture
def stack(shared_stack: GatewayStack) -> GatewayStack:
    """The shared stack with an engine that remembers nothing."""
    shared_stack.reset()
    return shared_stack
