"""POST /v1/chat/completions: from the request to its last byte. Owns the HTTP life of one chat reply.

Parses, admits and serves; watches the connection all the while, so that a client that leaves frees queue and lane at
once. Until the status line a failure is a plain error, afterwards an event. Status codes are in errors.py.
"""

import asyncio
import time
from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from contracts import telemetry as names
from contracts.errors import ServiceError
from gateway.admission import Admission
from gateway.api.chat_sinks import BodySink, StreamSink
from gateway.api.errors import render_error_event
from gateway.api.gateway import Gateway
from gateway.api.openapi import CHAT_BODY
from gateway.identity import Identity, identify
from gateway.interrupt import ClientGone, Interrupt
from gateway.request_context import RequestContext, context_of
from gateway.wire.chat_reply import ChatChunks, ReplyIdentity
from gateway.wire.chat_request import ChatCall, parse_chat

MODEL_HEADER = "x-soloist-model"
CLAMP_HEADER = "x-soloist-max-tokens"
WARNING_HEADER = "x-soloist-warning"
TOKENIZE_HEADER = "x-soloist-tokenize-ms"
# Larger bodies are parsed beside the event loop, so that other streams keep flowing.
_INLINE_BODY_BYTES = 64 << 10


def chat_routes(gateway: Gateway) -> APIRouter:
    """The routes of this file."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=CHAT_BODY)
    async def create_chat_completion(request: Request) -> Response:
        """Continue a conversation, streamed or whole.

        Any model name is accepted and echoed; the header x-soloist-model says which model answered.
        """
        context = context_of(request.scope)
        context.generation = True
        gateway.drain.check()
        call = await _parse(await request.body(), gateway)
        address = request.client.host if request.client is not None else None
        identity = identify(request.headers, call.request.session_key, address)
        if identity.label is not None:
            context.span.set_attribute(names.AGENT, identity.label)
        return ChatResponse(gateway, call, identity, context)

    return router


class ChatResponse(Response):
    """Serves one call when the server runs it; nothing is queued before that."""

    def __init__(self, gateway: Gateway, call: ChatCall, identity: Identity, context: RequestContext) -> None:
        super().__init__()
        self._gateway = gateway
        self._call = call
        self._identity = identity
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI signature
        """The ASGI entry point."""
        interrupt = Interrupt()
        watcher = asyncio.ensure_future(_watch_disconnect(receive, interrupt))
        try:
            with self._gateway.drain.running(interrupt):
                await self._answer(send, interrupt)
        except ClientGone:
            self._context.outcome = "cancelled"
            self._gateway.instruments.count_cancelled(self._context.phase)
        finally:
            watcher.cancel()

    async def _answer(self, send: Send, interrupt: Interrupt) -> None:
        sink: StreamSink | BodySink | None = None
        try:
            async with interrupt:
                model = await self._gateway.readiness.require()
                admission = await self._gateway.admitter.admit(self._call.request, model, self._identity, self._context)
                sink = self._make_sink(send, admission)
                end = await self._gateway.chat.serve(admission, sink, self._context, interrupt)
                self._context.outcome = end.reason
        except ServiceError as error:
            if sink is None or not sink.begun:
                raise
            self._context.outcome, self._context.error_code = "error", error.code
            await sink.fail(render_error_event(error, self._context.request_id))

    def _make_sink(self, send: Send, admission: Admission) -> StreamSink | BodySink:
        identity = ReplyIdentity(
            reply_id=f"chatcmpl-{self._context.request_id.removeprefix('req_')}",
            created_s=int(time.time()),
            model=self._call.request.model,
            fingerprint=self._gateway.fingerprint,
        )
        headers = _admission_headers(admission)
        stall_s = self._gateway.stall_s
        with_logprobs = self._call.request.logprobs is not None
        if not self._call.stream:
            return BodySink(send, identity, headers, stall_s=stall_s, with_logprobs=with_logprobs)
        chunks = ChatChunks(identity, include_usage=self._call.include_usage, with_logprobs=with_logprobs)
        return StreamSink(send, chunks, headers, stall_s)


async def _parse(body: bytes, gateway: Gateway) -> ChatCall:
    if len(body) <= _INLINE_BODY_BYTES:
        return parse_chat(body, gateway.model, gateway.body_limits)
    return await asyncio.to_thread(parse_chat, body, gateway.model, gateway.body_limits)


async def _watch_disconnect(receive: Receive, interrupt: Interrupt) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    interrupt.fire(ClientGone("the client closed the connection"))


def _admission_headers(admission: Admission) -> Mapping[str, str]:
    headers = {MODEL_HEADER: admission.model.text.manifest.name, TOKENIZE_HEADER: f"{admission.tokenize_s * 1e3:.3f}"}
    if admission.budget.clamped:
        headers[CLAMP_HEADER] = str(admission.budget.max_new_tokens)
    if admission.request.warnings:
        headers[WARNING_HEADER] = "; ".join(admission.request.warnings)
    return headers
