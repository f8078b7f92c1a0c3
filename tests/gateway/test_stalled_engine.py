"""An engine that is stopped in its tracks: its port takes connections and nothing ever answers."""

import asyncio
import socket
import time

import pytest

from contracts.errors import EngineLost
from contracts.generate import GenerateRequest
from gateway.clients.engine import EngineClient


async def read_while(client: EngineClient, *, probed: bool) -> None:
    stream = client.generate(GenerateRequest(request_id="r", token_ids=[1], max_new_tokens=1), {})
    try:
        started_s = time.monotonic()
        while time.monotonic() - started_s < 1.0:
            assert await stream.read(0.1) == [], "silence alone is no reason before the idle limit"
        if probed:
            with pytest.raises(EngineLost, match="no answer in time"):
                await client.fetch_readiness()
        while time.monotonic() - started_s < 6.0:
            await stream.read(0.1)
    finally:
        stream.close()


@pytest.mark.parametrize("probed", [False, True])
def test_silence_with_failed_probes_ends_a_request_early(probed: bool) -> None:
    async def scenario(url: str) -> None:
        client = EngineClient(url, idle_timeout_s=60.0 if probed else 2.0, stalled_s=0.5)
        client.open()
        try:
            words = "answers no probe" if probed else "silent for 2 s"
            with pytest.raises(EngineLost, match=words):
                await read_while(client, probed=probed)
        finally:
            await client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(scenario(f"http://127.0.0.1:{server.getsockname()[1]}"))
