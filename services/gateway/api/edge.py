"""The outermost ASGI layer: request id, clock, SERVER span, meters, one log line. One of the two process edges.

Owns the record of every request (request_context.py) and the last resort for our own bugs, which are logged once with
their trace and answered without it. Never logs a body, a header or a query.
"""

import logging
import time
from contextvars import Token

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import SpanKind, set_span_in_context
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts import telemetry as names
from contracts.errors import ServiceError
from contracts.observability import extract_context
from gateway.admission import mark_failed
from gateway.api.errors import render_error
from gateway.instruments import Instruments
from gateway.request_context import SCOPE_KEY, RequestContext

_LOG = logging.getLogger("gateway.request")
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_API_PREFIX = "/v1/"
_REQUEST_ID_HEADER = b"x-request-id"


class Edge:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, instruments: Instruments) -> None:
        self._app = app
        self._instruments = instruments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext()
        scope[SCOPE_KEY] = context
        request_id = context.request_id.encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (_REQUEST_ID_HEADER, request_id)]
            await send(message)

        is_api = scope["path"].startswith(_API_PREFIX)  # health and metrics polls would bury the requests
        token = self._open_span(context, scope) if is_api else None
        self._instruments.count_active(int(is_api))
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:  # noqa: BLE001 - a process edge: logged once, answered once
            await self._answer_bug(context, send_with_id)
        finally:
            if token is not None:
                detach(token)
            self._instruments.count_active(-int(is_api))
            self._close(context, scope)

    def _open_span(self, context: RequestContext, scope: Scope) -> "Token[Context]":
        parent = extract_context({n.decode(): v.decode("latin-1") for n, v in scope["headers"] if n in _TRACE_HEADERS})
        context.span = self._instruments.tracer.start_span(scope["method"], context=parent, kind=SpanKind.SERVER)
        return attach(set_span_in_context(context.span, parent))

    async def _answer_bug(self, context: RequestContext, send: Send) -> None:
        _LOG.exception("%s failed: this is a bug", context.request_id)
        context.outcome, context.error_code = "error", ServiceError.code
        if context.status is not None:
            return
        reply = render_error(ServiceError("bug"), context.request_id)
        headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _close(self, context: RequestContext, scope: Scope) -> None:
        duration_s = time.monotonic() - context.arrived_s
        route = _route(scope)
        if context.span.is_recording():
            _describe(context, scope["method"], route)
        context.span.end()
        if context.generation:
            self._instruments.record_duration(duration_s, context.error_code)
        level = logging.INFO if context.generation else logging.DEBUG
        if _LOG.isEnabledFor(level):
            code = f" {context.error_code}" if context.error_code else ""
            outcome = f"{context.outcome or 'done'}{code}"
            status = context.status or "-"
            line = (context.request_id, scope["method"], route, status, outcome, duration_s * 1e3)
            _LOG.log(level, "%s %s %s %s %s %.1f ms", *line)


def _route(scope: Scope) -> str:
    """The route's pattern: a path that strangers choose is neither a span name nor a log line."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) else "(no route)"


def _describe(context: RequestContext, method: str, route: str) -> None:
    span = context.span
    span.update_name(f"{method} {route}")
    span.set_attributes({names.REQUEST_ID: context.request_id, names.HTTP_METHOD: method, names.HTTP_ROUTE: route})
    if context.status is not None:
        span.set_attribute(names.HTTP_STATUS, context.status)
    if context.outcome is not None:
        span.set_attribute(names.OUTCOME, context.outcome)
    if context.error_code is not None:
        mark_failed(span, context.error_code)
