"""The gateway as one ASGI application: collaborators built and tied, routes mounted, layers wrapped. Owns the wiring.

Receives a configuration and, for tests and other hosts, ready-made collaborators. Nothing happens at import; the
lifespan starts and stops what runs in the background.
"""

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from contracts.errors import NotFound, ServiceError
from contracts.observability import Telemetry, start_telemetry
from gateway.admission import Admitter
from gateway.api.body_limit import BodyLimit
from gateway.api.chat import chat_routes
from gateway.api.edge import Edge
from gateway.api.errors import MethodNotAllowed, render_error
from gateway.api.gateway import Gateway
from gateway.api.health import health_routes
from gateway.api.models import model_routes
from gateway.api.paths import LenientPaths
from gateway.chat_service import ChatService, ServiceLimits
from gateway.clients.engine import EngineClient
from gateway.drain import Drain
from gateway.instruments import Instruments
from gateway.readiness import Readiness
from gateway.request_context import context_of
from gateway.settings import GatewayConfig
from gateway.text.model_text import ModelText
from gateway.turnstile import Turnstile, TurnstileLimits
from gateway.wire.chat_request import BodyLimits

VERSION = "0.1.0"


def create_app(
    config: GatewayConfig,
    *,
    engine: EngineClient | None = None,
    turnstile: Turnstile | None = None,
    text: ModelText | None = None,
    drain: Drain | None = None,
) -> ASGIApp:
    """The application; collaborators that are not given are made from the configuration."""
    settings = config.settings
    telemetry = start_telemetry("soloist-gateway", VERSION, config.otlp_endpoint)
    engine = engine or EngineClient(settings.engine_url, idle_timeout_s=settings.engine_idle_s)
    limits = TurnstileLimits(queue_limit=settings.queue_limit)
    turnstile = turnstile or Turnstile(settings.redis_url, limits, (engine.url,), telemetry)
    gateway = _build(config, telemetry, engine, turnstile, Readiness(config.home, settings.model, engine, text), drain)
    app = FastAPI(
        title="Soloist gateway", version=VERSION, docs_url=None, redoc_url=None, lifespan=_lifespan(gateway, engine)
    )
    for routes in (chat_routes, model_routes, health_routes):
        app.include_router(routes(gateway))
    app.add_exception_handler(ServiceError, _answer_service_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_bug)
    return Edge(BodyLimit(LenientPaths(app), settings.max_body_bytes), gateway.instruments)


def _build(
    config: GatewayConfig,
    telemetry: Telemetry,
    engine: EngineClient,
    turnstile: Turnstile,
    readiness: Readiness,
    drain: Drain | None,
) -> Gateway:
    settings = config.settings
    instruments = Instruments(telemetry, settings.model)
    limits = ServiceLimits(settings.first_beat_s, settings.beat_s, settings.engine_wait_s)
    identity = hashlib.sha256(f"{settings.model} {VERSION}".encode()).hexdigest()
    return Gateway(
        model=settings.model,
        created_s=int(time.time()),
        fingerprint=f"fp_{identity[:12]}",
        body_limits=BodyLimits(settings.max_nesting, settings.max_messages),
        stall_s=settings.stall_s,
        telemetry=telemetry,
        instruments=instruments,
        readiness=readiness,
        turnstile=turnstile,
        drain=drain or Drain(),
        admitter=Admitter(instruments),
        chat=ChatService(engine, turnstile, readiness, instruments, limits),
    )


def _lifespan(gateway: Gateway, engine: EngineClient):  # type: ignore[no-untyped-def]  # FastAPI's own callable type
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.open()
        await gateway.turnstile.start()
        gateway.readiness.start()
        try:
            yield
        finally:
            await gateway.readiness.stop()
            await gateway.chat.close()
            await gateway.turnstile.stop()
            await engine.close()
            gateway.telemetry.shutdown()

    return lifespan


async def _answer_service_error(request: Request, error: Exception) -> Response:
    context = context_of(request.scope)
    failure = cast(ServiceError, error)
    reply = render_error(failure, context.request_id)
    context.outcome, context.error_code = "rejected", failure.code
    return Response(reply.body, reply.status, reply.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) in the shape of the API."""
    failure = cast(HTTPException, error)
    path = request.scope["path"]
    if failure.status_code == 405:
        return await _answer_service_error(request, MethodNotAllowed(f"{request.method} is not allowed on {path}"))
    return await _answer_service_error(request, NotFound(f"there is no {request.method} {path}"))


async def _answer_bug(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the edge logs the error
    return await _answer_service_error(request, ServiceError("bug"))
