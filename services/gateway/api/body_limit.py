"""The limit on request bodies, as an ASGI layer. Owns reading the body, with and without a
declared length.

A body that is too large is refused as soon as that is known. What the client still sends is read and thrown away for a
while, because closing at once would lose the answer in the client's unfinished upload.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.errors import RequestTooLarge
from gateway.api.errors import render_error
from gateway.request_context import context_of

_LINGER_S = 5.0
_LINGER_BYTES = 256 << 20
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyLimit:
    """Hands the application whole bodies of at most max_bytes, answers larger ones with 413."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http" or scope["method"] not in _METHODS_WITH_BODY:
            await self._app(scope, receive, send)
            return
        declared = _declared_bytes(scope)
        if declared is not None and declared > self._max_bytes:
            await self._refuse(scope, receive, send, declared)
            return
        chunks: list[bytes] = []
        num_bytes = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                context_of(scope).outcome = "cancelled"
                return
            chunk = message.get("body", b"")
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                await self._refuse(scope, receive, send, num_bytes)
                return
            chunks.append(chunk)
            more = message.get("more_body", False)
        await self._app(scope, _replay(b"".join(chunks), receive), send)

    def _explain(self, num_bytes: int) -> str:
        return f"the body has {num_bytes} bytes or more, the limit is {self._max_bytes}"

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, num_bytes: int) -> None:
        context = context_of(scope)
        context.outcome, context.error_code = "rejected", RequestTooLarge.code
        reply = render_error(RequestTooLarge(self._explain(num_bytes)), context.request_id)
        headers = reply.headers | {"content-length": str(len(reply.body)), "connection": "close"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        await send({"type": "http.response.body", "body": reply.body, "more_body": True})
        await _linger(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _declared_bytes(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then whatever else comes (a disconnect)."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        if first is not None:
            message, first = first, None
            return message
        return await receive()

    return replay


async def _linger(receive: Receive) -> None:
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
