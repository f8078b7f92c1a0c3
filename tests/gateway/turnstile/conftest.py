"""One server for the tests that do not harm it, with the queue's keys cleared before each."""

import asyncio
from collections.abc import Iterator

import pytest

from support.redis_server import shared_url
from support.turnstile_driver import clear_queue


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared_url(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis_url(server_url: str) -> str:
    asyncio.run(clear_queue(server_url))
    return server_url
