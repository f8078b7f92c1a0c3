"""A plain HTTP client of the engine: one call, one event stream. Owns sockets, so that a test can break them."""

import http.client
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgspec

from contracts import codec
from contracts.errors import ServiceError
from contracts.generate import Event, Failed, Finished, GenerateRequest

TIMEOUT_S = 30.0


def call(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and decoded JSON of one call."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, msgspec.json.decode(content) if is_json else content.decode()
    finally:
        connection.close()


def wait_until_ready(port: int, timeout_s: float = 60.0) -> None:
    """Poll until the engine says ready."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            if call(port, "GET", "/health/ready")[0] == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < deadline_s, "the engine did not become ready"
        time.sleep(0.05)


class EngineCall:
    """One POST /v1/generate; iterate for its events, close() to walk away."""

    def __init__(self, port: int, request: GenerateRequest | bytes, headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        body = request if isinstance(request, bytes) else codec.encode(request)
        self._connection.request("POST", "/v1/generate", body, {"content-type": "application/json", **(headers or {})})
        self._response: http.client.HTTPResponse | None = None
        self.events: list[Event] = []

    @property
    def response(self) -> http.client.HTTPResponse:
        """Waits for the status line."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def refusal(self) -> tuple[int, Failed]:
        """Status and body of a call that was refused."""
        return self.response.status, codec.decode_failed(self.response.read())

    def __iter__(self) -> Iterator[Event]:
        if self.response.status != 200:
            raise ServiceError(f"refused: {self.refusal()}")
        for line in self.response:
            event = codec.decode_event(line)
            self.events.append(event)
            yield event

    def read_to_end(self) -> list[Event]:
        """Every event; the last one is terminal and the connection ends behind it."""
        list(self)
        assert isinstance(self.events[-1], Finished | Failed), self.events[-1:]
        return self.events

    def wait_for(self, kind: type) -> None:
        """Read up to the next event of a kind."""
        for event in self:
            if isinstance(event, kind):
                return
        raise AssertionError(f"the stream ended without {kind.__name__}: {self.events[-1:]}")

    def close(self) -> None:
        """Break the connection."""
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def __enter__(self) -> "EngineCall":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
