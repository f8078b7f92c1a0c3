"""Where a chat reply goes: a stream of events, or one body kept until the end. Owns the two sinks and their headers.

Both decide themselves when the status line is sent; until then (begun is false) a failure can be a plain HTTP error.
"""

import asyncio
from collections.abc import Mapping

from starlette.types import Send

from gateway.interrupt import ClientGone
from gateway.reply import ReplyDelta, ReplyEnd, ReplyStart
from gateway.wire import sse
from gateway.wire.chat_reply import ChatChunks, ReplyIdentity, render_completion

QUEUE_WAIT_HEADER = "x-soloist-queue-wait-ms"
CACHED_HEADER = "x-soloist-cached-tokens"


class StreamSink:
    """Server-sent events; a client that does not read for stall_s counts as gone."""

    def __init__(self, send: Send, chunks: ChatChunks, headers: Mapping[str, str], stall_s: float) -> None:
        self._send = send
        self._chunks = chunks
        self._headers = {"content-type": sse.CONTENT_TYPE, **sse.HEADERS, **headers}
        self._stall_s = stall_s
        self._noted: list[bytes] = []
        self._more = True
        self.begun = False

    @property
    def has_notes(self) -> bool:
        """Whether events wait to be sent."""
        return bool(self._noted)

    async def keep_alive(self) -> None:
        """A comment, with the headers before it when it is the first byte."""
        self._noted.append(sse.KEEP_ALIVE)
        await self.flush()

    async def flush(self) -> None:
        """Send the noted events as one message."""
        if not self._noted:
            return
        body = b"".join(self._noted)
        self._noted.clear()
        try:
            async with asyncio.timeout(self._stall_s):
                if not self.begun:
                    self.begun = True
                    await self._send(_response_start(self._headers))
                await self._send({"type": "http.response.body", "body": body, "more_body": self._more})
        except TimeoutError:
            raise ClientGone(f"the client did not read for {self._stall_s:g} s") from None

    def start(self, start: ReplyStart) -> None:
        """The role chunk; the counts go into the headers unless those are gone."""
        self._headers |= _start_headers(start)
        self._noted.append(self._chunks.opening())

    def delta(self, delta: ReplyDelta) -> None:
        """A content chunk."""
        self._noted.append(self._chunks.content(delta))

    def end(self, end: ReplyEnd) -> None:
        """Finish reason, usage and the end mark."""
        self._noted += (self._chunks.closing(end), sse.DONE)
        self._more = False

    async def fail(self, event: bytes) -> None:
        """The error event that ends a stream which cannot end well."""
        self._noted.append(event)
        self._more = False
        await self.flush()


class BodySink:
    """One JSON body, sent by flush() after the end."""

    def __init__(
        self, send: Send, identity: ReplyIdentity, headers: Mapping[str, str], *, stall_s: float, with_logprobs: bool
    ) -> None:
        self._send = send
        self._identity = identity
        self._headers = {"content-type": "application/json", **headers}
        self._stall_s = stall_s
        self._with_logprobs = with_logprobs
        self._deltas: list[ReplyDelta] = []
        self._end: ReplyEnd | None = None
        self.begun = False

    @property
    def has_notes(self) -> bool:
        """Whether the body is complete."""
        return self._end is not None

    async def keep_alive(self) -> None:
        """Nothing: a body cannot be kept alive without spoiling it."""

    async def flush(self) -> None:
        """Send the body once it is complete."""
        if self._end is None:
            return
        body = render_completion(self._identity, self._deltas, self._end, with_logprobs=self._with_logprobs)
        self.begun = True
        try:
            async with asyncio.timeout(self._stall_s):
                await self._send(_response_start(self._headers | {"content-length": str(len(body))}))
                await self._send({"type": "http.response.body", "body": body, "more_body": False})
        except TimeoutError:
            raise ClientGone(f"the client did not read for {self._stall_s:g} s") from None

    def start(self, start: ReplyStart) -> None:
        """The counts go into the headers."""
        self._headers |= _start_headers(start)

    def delta(self, delta: ReplyDelta) -> None:
        """Kept until the end."""
        self._deltas.append(delta)

    def end(self, end: ReplyEnd) -> None:
        """The body is complete."""
        self._end = end

    async def fail(self, event: bytes) -> None:
        """A body that was begun is whole; there is no place for an event."""


def _start_headers(start: ReplyStart) -> dict[str, str]:
    wait_ms = start.wait_s * 1e3
    return {QUEUE_WAIT_HEADER: f"{wait_ms:.3f}", CACHED_HEADER: str(start.cached_tokens)}


def _response_start(headers: Mapping[str, str]) -> dict[str, object]:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}
