"""`python -m gateway` as a process: settings, exit codes, signals."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.errors import SetupError
from gateway.settings import read_config
from support.gateway_stack import RawRequest, wait_until
from support.redis_server import RedisServer
from support.scripted_engine import Script, ScriptedEngine
from support.server_thread import ServerThread
from support.text_model import MODEL_NAME, make_model_folder

ROOT = Path(__file__).resolve().parents[2]
STREAM: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def spawn(**environ: str) -> "subprocess.Popen[str]":
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "services"), "HOME": "/nonexistent"}
    command = [sys.executable, "-m", "gateway"]
    return subprocess.Popen(command, env=base | environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(**environ: str) -> tuple[int, str]:
    process = spawn(**environ)
    _, errors = process.communicate(timeout=20)
    return process.returncode, errors


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A gateway process on a free port in front of a scripted engine in this process."""

    def __init__(self, home: Path, redis_url: str, engine_port: int = 0, **environ: str) -> None:
        self.engine = ScriptedEngine(home / "models" / MODEL_NAME)
        self.engine_server = ServerThread(self.engine, engine_port).start()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.popen = spawn(
            SOLOIST_HOME=str(home), GATEWAY_MODEL=MODEL_NAME, GATEWAY_REDIS_URL=redis_url, GATEWAY_PORT=str(self.port),
            GATEWAY_ENGINE_URL=self.engine_server.url, GATEWAY_DRAIN_S="1.5", **environ,
        )  # fmt: skip
        wait_until(self.ready, "the gateway to be ready")

    def ready(self) -> bool:
        assert self.popen.poll() is None, self.popen.communicate()[1]
        try:
            return httpx.get(f"{self.url}/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> str:
        self.popen.terminate()
        _, errors = self.popen.communicate(timeout=10)
        self.engine_server.stop()
        return errors


@pytest.fixture
def process(home: Path, redis: RedisServer) -> Iterator[Process]:
    started = Process(home, redis.url)
    yield started
    if started.popen.poll() is None:
        started.stop()


def test_sigterm_drains(process: Process) -> None:
    """Readiness falls, late requests get their 503, a short stream ends well, a long one is told why not."""
    process.engine.next_scripts = [
        Script(text="word " * 40, token_delay_s=0.02),
        Script(text="x" * 900, token_delay_s=0.02),
    ]
    with RawRequest(process.port, STREAM) as short, RawRequest(process.port, STREAM) as long:
        short.read_until(b"word")
        started_s = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{process.url}/health/ready").status_code == 503, "readiness to fall")
        assert "shutting down" in httpx.get(f"{process.url}/health/ready").text
        assert httpx.get(f"{process.url}/health/live").status_code == 200
        late = httpx.post(f"{process.url}/v1/chat/completions", json=STREAM)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
        assert int(late.headers["retry-after"]) >= 1
        assert short.read_events()[-1] == "[DONE]"
        events = long.read_events()
        assert events[-1]["error"]["code"] == "shutting_down" and "[DONE]" not in events
    assert process.popen.wait(timeout=10) == 0
    assert time.monotonic() - started_s < 1.5 + 2.0
    assert "Traceback" not in process.stop()
    assert process.engine.active == 0


def test_an_idle_gateway_stops_at_once_with_code_0(process: Process) -> None:
    started_s = time.monotonic()
    errors = process.stop()
    assert process.popen.returncode == 0 and time.monotonic() - started_s < 2.0
    assert "draining" in errors and "Traceback" not in errors


def test_a_killed_gateway_leaves_no_lease_behind(process: Process, home: Path, redis: RedisServer) -> None:
    process.engine.script = Script(text="word " * 300, token_delay_s=0.02)
    with RawRequest(process.port, STREAM) as request:
        request.read_until(b"word")
        process.popen.kill()
        process.popen.communicate()
    wait_until(lambda: process.engine.active == 0, "the engine to notice")
    process.engine_server.stop()
    follower = Process(home, redis.url, process.engine_server.port)
    started_s = time.monotonic()
    assert httpx.post(f"{follower.url}/v1/chat/completions", json=STREAM, timeout=15).text.endswith("[DONE]\n\n")
    assert time.monotonic() - started_s < 10.0
    follower.stop()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "GATEWAY_REDIS_URL=''"),
        ({"GATEWAY_REDIS_URL": "localhost:6379"}, "expected redis://"),
        ({"GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0", "GATEWAY_PROT": "1"}, "GATEWAY_PROT"),
        ({"GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0", "GATEWAY_PORT": "99999"}, "GATEWAY_PORT"),
        ({"GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0", "GATEWAY_ENGINE_URL": "engine:8001"}, "GATEWAY_ENGINE_URL"),
        ({"GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0", "GATEWAY_BEAT_S": "11"}, "GATEWAY_BEAT_S"),
        ({"GATEWAY_REDIS_URL": "redis://h:1/0", "OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense"}, "ENDPOINT='nonsense'"),
        ({"GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0", "GATEWAY_MODEL": "../etc"}, "GATEWAY_MODEL"),
    ],
)
def test_bad_settings_are_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SetupError, match=words.replace("[", r"\[")):
        read_config(environ)


def test_settings_from_the_environment() -> None:
    config = read_config(
        {"GATEWAY_REDIS_URL": "redis://h:1/0", "GATEWAY_PORT": "0", "GATEWAY_ENGINE_URL": "http://e:1/",
         "SOLOIST_HOME": "/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTHER": "1"}
    )  # fmt: skip
    assert (config.settings.port, config.settings.engine_url) == (0, "http://e:1")
    assert (str(config.home), config.otlp_endpoint) == ("/x", "http://c:4318")
    off = {"GATEWAY_REDIS_URL": "redis://h:1/0", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}
    assert read_config(off).otlp_endpoint is None


def test_exit_codes_and_one_clear_line(home: Path, tmp_path: Path) -> None:
    code, errors = run(GATEWAY_REDIS_URL="nonsense")
    assert code == 2 and errors.count("\n") == 1 and "GATEWAY_REDIS_URL" in errors
    folder = make_model_folder(tmp_path)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    code, errors = run(GATEWAY_REDIS_URL="redis://127.0.0.1:1/0", SOLOIST_HOME=str(tmp_path), GATEWAY_MODEL=MODEL_NAME)
    assert code == 2 and errors.count("\n") == 1 and "tokenizer.json" in errors
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, errors = run(
            GATEWAY_REDIS_URL="redis://127.0.0.1:1/0",
            SOLOIST_HOME=str(home),
            GATEWAY_MODEL=MODEL_NAME,
            GATEWAY_PORT=port,
        )
    assert code == 1 and errors.count("\n") == 1 and f"cannot listen on 127.0.0.1:{port}" in errors


def test_starts_without_redis_and_without_engine(home: Path) -> None:
    port = free_port()
    popen = spawn(
        GATEWAY_REDIS_URL="redis://127.0.0.1:1/0", GATEWAY_ENGINE_URL="http://127.0.0.1:1", GATEWAY_PORT=str(port),
        SOLOIST_HOME=str(home), GATEWAY_MODEL=MODEL_NAME,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def live() -> bool:
        try:
            return httpx.get(f"{url}/health/live").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(live, "the gateway to live")
        reply = httpx.get(f"{url}/health/ready")
        assert reply.status_code == 503 and len(reply.json()["reasons"]) == 2
        assert httpx.post(f"{url}/v1/chat/completions", json=STREAM).status_code == 503
        assert httpx.post(f"{url}/v1/chat/completions", json=STREAM | {"n": 3}).status_code == 400
    finally:
        popen.terminate()
        popen.communicate(timeout=10)
    assert popen.returncode == 0
