"""The engine over HTTP: info, readiness and one event stream per generation. Owns connections and their failures.

Receives contract messages, hands on contract events. A broken connection, a silent engine or a stream without its
terminal event is EngineLost; a refusal is the error that the engine named. Does not retry and does not know tokens.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

import aiohttp

from contracts import codec
from contracts.engine_info import EngineInfo, Readiness
from contracts.errors import EngineLost, InvalidRequest, ServiceError, ShuttingDown, from_failed
from contracts.generate import Event, Failed, Finished, GenerateRequest

_LOG = logging.getLogger("gateway.engine")
_CONNECT_TIMEOUT_S = 3.0
_PROBE_TIMEOUT_S = 2.0
STALLED_S = 15.0
_DRAIN_TIMEOUT_S = 2.0
_READ_BUFFER_BYTES = 1 << 20
_JSON = {"content-type": "application/json"}


class ProbePatience:
    """How long probes of an engine have failed one after another; is_over beyond limit_s of that."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._failing_since_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether no probe was answered for limit_s."""
        return self._failing_since_s is not None and time.monotonic() - self._failing_since_s > self.limit_s

    def note(self, *, answered: bool, asked_s: float) -> None:
        """A probe asked at asked_s was answered or not."""
        if answered:
            self._failing_since_s = None
        elif self._failing_since_s is None:
            self._failing_since_s = asked_s


class EngineStream:
    """One generation's events. Closing it before the terminal event cancels the generation."""

    def __init__(
        self, opening: "asyncio.Task[aiohttp.ClientResponse]", idle_timeout_s: float, patience: "ProbePatience"
    ) -> None:
        self._opening = opening
        self._response: aiohttp.ClientResponse | None = None
        self._idle_timeout_s = idle_timeout_s
        self._patience = patience
        self._heard_s = time.monotonic()
        self._partial = b""
        self._ended = False
        self._broken: EngineLost | None = None

    async def read(self, timeout_s: float) -> list[Event]:
        """The events that arrived, at least one; empty when timeout_s passed first.

        Raises: EngineLost; the error named by a refusal. A Failed event is an event, not an error.
        """
        if self._broken is not None:
            raise self._broken
        try:
            chunk = await self._read_chunk(timeout_s)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLost(f"the engine is lost: {_in_words(error)}") from error
        if chunk is None:
            silent_s = time.monotonic() - self._heard_s
            if silent_s > self._idle_timeout_s:
                raise EngineLost(f"the engine was silent for {self._idle_timeout_s:g} s")
            if silent_s > self._patience.limit_s and self._patience.is_over:
                raise EngineLost(f"the engine is silent and answers no probe for {self._patience.limit_s:g} s")
            return []
        self._heard_s = time.monotonic()
        return self._split(chunk)

    def close(self) -> None:
        """Let go of the connection: reused after the terminal event, else closed, which cancels the generation."""
        if self._response is None:
            self._opening.cancel()
            self._opening.add_done_callback(_close_late)
        elif not self._ended:
            self._response.close()

    async def drain(self) -> None:
        """Read the end of a finished stream so that its connection can be used again; never raises."""
        if self._response is None or not self._ended:
            return
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await self._response.read()
        except (aiohttp.ClientError, OSError):
            self._response.close()

    async def _read_chunk(self, timeout_s: float) -> bytes | None:
        started_s = time.monotonic()
        if self._response is None:
            done, _ = await asyncio.wait((self._opening,), timeout=timeout_s)
            if not done:
                return None
            self._response = self._opening.result()
            if self._response.status != 200:
                raise await _refusal(self._response)
            timeout_s = max(0.001, timeout_s - (time.monotonic() - started_s))
        try:
            async with asyncio.timeout(timeout_s):
                return await self._response.content.readany()
        except TimeoutError:
            return None

    def _split(self, chunk: bytes) -> list[Event]:
        if not chunk:
            raise EngineLost("the engine's stream ended without a terminal event")
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        events: list[Event] = []
        try:
            for line in lines:
                events.append(codec.decode_event(line))
        except InvalidRequest as error:
            # What came before it is good and is handed on first; its own text never reaches a client.
            _LOG.error("the engine sent an event that is not in the contract: %s", error.message)
            self._broken = EngineLost("the engine sent an event that is not in the contract")
            if not events:
                raise self._broken from error
        self._ended = bool(events) and isinstance(events[-1], Finished | Failed)
        return events


class EngineClient:
    """One engine's address; open() inside the running loop before use."""

    def __init__(self, url: str, *, idle_timeout_s: float, stalled_s: float = STALLED_S) -> None:
        self.url = url.rstrip("/")
        self._idle_timeout_s = idle_timeout_s
        self._patience = ProbePatience(stalled_s)
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make the connection pool."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=timeout,
            read_bufsize=_READ_BUFFER_BYTES,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def generate(self, request: GenerateRequest, headers: Mapping[str, str]) -> EngineStream:
        """Start a generation; failures to connect show at the first read()."""
        post = self._open_session.post(
            f"{self.url}/v1/generate", data=codec.encode(request), headers={**_JSON, **headers}
        )
        return EngineStream(asyncio.ensure_future(_begin(post)), self._idle_timeout_s, self._patience)

    async def fetch_info(self) -> EngineInfo:
        """Raises: EngineLost when the engine does not answer as the contract says."""
        status, body = await self._get("/v1/info")
        if status != 200:
            raise EngineLost(f"the engine answered {status} to /v1/info")
        try:
            return codec.decode_engine_info(body)
        except InvalidRequest as error:
            raise EngineLost(f"the engine's /v1/info is not in the contract: {error.message}") from error

    async def fetch_readiness(self) -> Readiness:
        """Raises: EngineLost when the engine does not answer as the contract says."""
        _, body = await self._get("/health/ready")
        try:
            return codec.decode_readiness(body)
        except InvalidRequest as error:
            raise EngineLost(f"the engine's /health/ready is not in the contract: {error.message}") from error

    async def _get(self, path: str) -> tuple[int, bytes]:
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S), self._open_session.get(self.url + path) as response:
                body = await response.read()
                self._patience.note(answered=True, asked_s=asked_s)
                return response.status, body
        except (aiohttp.ClientError, OSError) as error:
            self._patience.note(answered=False, asked_s=asked_s)
            raise EngineLost(f"the engine at {self.url} cannot be reached: {_in_words(error)}") from error

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "open() first"
        return self._session


async def _begin(post: "aiohttp.client._RequestContextManager") -> aiohttp.ClientResponse:
    return await post


def engine_error(failed: Failed) -> ServiceError:
    """The error of a Failed; an engine that shuts down is lost to us, it is not we who shut down."""
    error = from_failed(failed)
    return EngineLost(error.message) if isinstance(error, ShuttingDown) else error


async def _refusal(response: aiohttp.ClientResponse) -> ServiceError:
    body = await response.read()
    try:
        return engine_error(codec.decode_failed(body))
    except InvalidRequest:
        return EngineLost(f"the engine answered {response.status} without a reason")


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name is unknown"
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = isinstance(error.os_error, ConnectionRefusedError)
        return "connection refused" if refused else f"no connection, {error.strerror or 'for no known reason'}"
    return "the connection broke"


def _close_late(opening: "asyncio.Task[aiohttp.ClientResponse]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
