"""The gateway in front of the real engine with the real model: answers, one trace, leaving, kill -9, restart."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from contracts import telemetry as names
from gateway.app import create_app
from gateway.settings import read_config
from support.gateway_stack import RawRequest, wait_until
from support.otlp_receiver import OtlpReceiver
from support.redis_server import running_server
from support.server_thread import ServerThread

pytestmark = [pytest.mark.weights, pytest.mark.timeout(240)]

SERVICES = Path(__file__).resolve().parents[2] / "services"
QUESTION: Any = [{"role": "user", "content": "Write a Python function that reverses a string."}]


class RealStack:
    """An engine process and a gateway in this process; the engine may be killed and started again."""

    def __init__(self, home: Path, redis_url: str, otlp: str, engine_log: Path) -> None:
        self._environ = os.environ | {
            "PYTHONPATH": str(SERVICES),
            "SOLOIST_HOME": str(home),
            "ENGINE_PORT": str(free_port()),
            "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        }
        self._log = engine_log
        self.start_engine()
        config = read_config(
            {
                "SOLOIST_HOME": str(home),
                "GATEWAY_REDIS_URL": redis_url,
                "GATEWAY_ENGINE_URL": f"http://127.0.0.1:{self._environ['ENGINE_PORT']}",
                "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
            }
        )
        self.gateway = ServerThread(create_app(config)).start()
        self.client = openai.OpenAI(base_url=f"{self.gateway.url}/v1", api_key="x", max_retries=0, timeout=120)

    def start_engine(self) -> None:
        with self._log.open("ab") as log:
            self.engine = subprocess.Popen([sys.executable, "-m", "engine"], env=self._environ, stderr=log, stdout=log)

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.engine.poll() is None, self._log.read_text(encoding="utf-8")[-2000:]
            return httpx.get(f"{self.gateway.url}/health/ready").status_code == 200

        wait_until(ready, "the engine", timeout_s=120)

    def ask(self, **fields: Any) -> Any:
        return self.client.chat.completions.create(model="local", messages=QUESTION, **fields)

    def stop(self) -> None:
        self.client.close()
        self.gateway.stop()
        self.engine.terminate()
        self.engine.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def real(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver) -> Iterator[RealStack]:
    folder = tmp_path_factory.mktemp("real")
    with running_server(folder / "redis") as redis:
        stack = RealStack(smollm2_folder.parents[1], redis.url, receiver.endpoint, folder / "engine.log")
        try:
            stack.wait_ready()
            yield stack
        finally:
            stack.stop()


def stream_text(real: RealStack, **fields: Any) -> str:
    chunks = real.ask(stream=True, **fields)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_a_sensible_answer_is_the_same_streamed_and_whole(real: RealStack) -> None:
    streamed = stream_text(real, max_tokens=40, seed=1)
    assert "def " in streamed and "return" in streamed
    whole = real.ask(max_tokens=40, seed=1)
    assert whole.choices[0].message.content == streamed
    assert whole.usage.completion_tokens == 40 and whole.choices[0].finish_reason == "length"
    assert whole.usage.prompt_tokens_details.cached_tokens > 0, "the prompt of the first was reused"


def test_clients_at_once_are_served_in_turn(real: RealStack) -> None:
    alone = stream_text(real, max_tokens=12, seed=3)
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(stream_text(real, max_tokens=12, seed=3))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [alone] * 3


def test_one_trace_over_both_services(real: RealStack, receiver: OtlpReceiver) -> None:
    trace_id = "5b8efff798038103d269b633813fc60c"
    headers = {"traceparent": f"00-{trace_id}-eee19b7ec3c1b174-01"}
    real.ask(max_tokens=4, extra_headers=headers)
    wanted = {names.SPAN_GENERATE, names.SPAN_PREFILL, names.SPAN_DECODE, names.SPAN_QUEUE_WAIT, "chat smollm2-135m"}

    def mine() -> dict[str, Any]:
        return {span.name: span for span in receiver.spans if span.trace_id == trace_id}

    wait_until(lambda: wanted <= set(mine()), "the spans")
    spans = mine()
    assert spans[names.SPAN_GENERATE].parent_id == spans["chat smollm2-135m"].span_id
    assert (
        spans[names.SPAN_PREFILL].parent_id == spans[names.SPAN_DECODE].parent_id == spans[names.SPAN_GENERATE].span_id
    )
    assert len({span.service for span in spans.values()}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_prefill_frees_the_engine(real: RealStack, stream: bool) -> None:
    long = {"messages": [{"role": "user", "content": f"{stream} " + "word " * 6000}], "stream": stream}
    with RawRequest(real.gateway.port, long):
        time.sleep(1.5)
    started_s = time.monotonic()
    real.ask(max_tokens=1)
    assert time.monotonic() - started_s < 20.0  # the whole prefill takes over a minute on such a machine


def test_kill_9_in_mid_stream_and_the_next_request_after_the_restart(real: RealStack) -> None:
    with pytest.raises(openai.APIError) as caught:
        for number, _ in enumerate(real.ask(stream=True)):
            if number == 5:
                real.engine.kill()
    assert caught.value.code == "engine_lost"
    with pytest.raises(openai.InternalServerError) as refused:
        real.ask(max_tokens=1)
    assert refused.value.status_code == 503 and int(refused.value.response.headers["retry-after"]) >= 1
    real.engine.wait()
    real.start_engine()
    real.wait_ready()
    assert "def " in stream_text(real, max_tokens=40, seed=1)
