"""Gateway and scripted engine behind real sockets in this process, on a given store. Owns both servers and a client.

The gateway's waits are shortened so that tests take no longer than they must; every setting can be overridden.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from gateway.app import create_app
from gateway.settings import read_config
from gateway.turnstile import Turnstile
from support.scripted_engine import ScriptedEngine
from support.server_thread import ServerThread
from support.text_model import MODEL_NAME

CHAT_PATH = "/v1/chat/completions"
FAST = {
    "GATEWAY_BEAT_S": "0.2",
    "GATEWAY_FIRST_BEAT_S": "0.1",
    "GATEWAY_ENGINE_WAIT_S": "1.0",
    "GATEWAY_ENGINE_IDLE_S": "2.0",
    "GATEWAY_STALL_S": "2.0",
}


class GatewayStack:
    """Started by entering; engine is the scripted engine, url the gateway's address."""

    def __init__(
        self, home: Path, redis_url: str, *, context_limit: int | None = None, otlp: str | None = None, **settings: str
    ) -> None:
        self.engine = ScriptedEngine(home / "models" / MODEL_NAME, context_limit, otlp)
        self.engine_server = ServerThread(self.engine)
        self._environ = {
            "SOLOIST_HOME": str(home),
            "GATEWAY_MODEL": MODEL_NAME,
            "GATEWAY_REDIS_URL": redis_url,
            **FAST,
            **settings,
            **({"OTEL_EXPORTER_OTLP_ENDPOINT": otlp} if otlp else {}),
        }
        self._gateway_server: ServerThread | None = None
        self.client = httpx.Client(timeout=20.0)

    @property
    def url(self) -> str:
        """The gateway's address."""
        assert self._gateway_server is not None, "not started"
        return self._gateway_server.url

    @property
    def port(self) -> int:
        """The gateway's port."""
        assert self._gateway_server is not None, "not started"
        return self._gateway_server.port

    def start(self) -> "GatewayStack":
        """Start both and wait until the gateway is ready."""
        self.engine_server.start()
        self.start_gateway()
        self.wait_ready()
        return self

    def start_gateway(self, turnstile: Turnstile | None = None) -> None:
        """Start the gateway alone; the engine's port must be known."""
        config = read_config(self._environ | {"GATEWAY_ENGINE_URL": self.engine_server.url})
        self._gateway_server = ServerThread(create_app(config, turnstile=turnstile)).start()
        self.client.base_url = httpx.URL(self.url)

    def stop(self) -> None:
        """Stop both; the gateway first, so that it can say goodbye."""
        self.stop_gateway()
        self.engine_server.stop()
        self.engine.stop_telemetry()

    def stop_gateway(self) -> None:
        """Stop the gateway alone."""
        self.client.close()
        if self._gateway_server is not None:
            self._gateway_server.stop()

    def reset(self) -> None:
        """An engine without memory, once it is idle."""
        wait_until(lambda: self.engine.active == 0, "the engine to be idle")
        self.engine.forget()

    def wait_ready(self) -> None:
        """Wait until /health/ready says so."""
        wait_until(lambda: self.client.get("/health/ready").status_code == 200, "the gateway to be ready")

    def post(self, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """One chat completion; body is sent as JSON, or as it is when it is bytes."""
        if isinstance(body, bytes):
            return self.client.post(CHAT_PATH, content=body, headers=headers)
        return self.client.post(CHAT_PATH, json=body, headers=headers)

    def ask(self, text: str = "hi", **fields: Any) -> httpx.Response:
        """One chat completion of one user message."""
        return self.post({"model": "local", "messages": [{"role": "user", "content": text}], **fields})

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = self.client.get("/metrics").text.splitlines()
        samples = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples if all(label in line for label in wanted))

    def __enter__(self) -> "GatewayStack":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class RawRequest:
    """A chat request on a bare socket, so that a test decides when to read and when to leave."""

    def __init__(
        self, port: int, body: Any, *, receive_bytes: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        content = json.dumps(body).encode()
        head = {
            "host": "test",
            "content-type": "application/json",
            "content-length": str(len(content)),
            **(headers or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        self.socket = socket.socket()
        self.socket.settimeout(20.0)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(f"POST {CHAT_PATH} HTTP/1.1\r\n{lines}\r\n".encode() + content)
        self.received = b""

    def read_until(self, mark: bytes) -> bytes:
        """Everything received so far, once mark is in it."""
        while mark not in self.received:
            chunk = self.socket.recv(65536)
            assert chunk, f"closed before {mark!r}; received {self.received!r}"
            self.received += chunk
        return self.received

    def read_all(self) -> bytes:
        """Everything up to the end of the chunked body or the connection."""
        while not self.received.endswith(b"0\r\n\r\n") and (chunk := self.socket.recv(65536)):
            self.received += chunk
        return self.received

    def read_events(self) -> list[Any]:
        """The events of the whole chunked response, without its comments."""
        _, _, body = self.read_all().partition(b"\r\n\r\n")
        content = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            content += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        return parse_events(content.decode())

    def leave(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> "RawRequest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def parse_events(body: str) -> list[Any]:
    """The payloads of a stream's data lines; "[DONE]" stays text. Comments are dropped, anything else is a failure."""
    events = []
    for block in body.split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: ") and "\n" not in block, block
            payload = block.removeprefix("data: ")
            events.append(payload if payload == "[DONE]" else json.loads(payload))
    return events


def join_content(events: list[Any]) -> str:
    """The content of a stream's chunks."""
    chunks = [event["choices"][0]["delta"] for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(chunk.get("content") or "" for chunk in chunks)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Poll until condition() is truthy."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
