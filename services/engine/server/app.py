"""The engine's HTTP application: six routes over an engine that may still be loading. Owns routing and body limits."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from contracts.codec import decode_cancel_request, decode_generate_request, encode
from contracts.errors import RequestTooLarge, ServiceError
from contracts.observability import Telemetry, extract_context
from engine.server.errors import answer_crash, answer_http_exception, answer_nobody, answer_service_error
from engine.server.instruments import Instruments, RequestRecord
from engine.server.lifecycle import Lifecycle
from engine.server.stream import EventQueue, EventStream

_JSON = "application/json"
_DISCARD_FACTOR = 4  # a refused body is read to its end up to so many times the limit, so that the answer arrives


def create_app(lifecycle: Lifecycle, telemetry: Telemetry, *, max_body_bytes: int) -> ASGIApp:
    """The application; lifecycle may become ready later."""
    routes = _Routes(lifecycle, Instruments(telemetry), max_body_bytes)
    return Starlette(
        routes=[
            Route("/v1/generate", routes.generate, methods=["POST"]),
            Route("/v1/requests/{request_id}/cancel", routes.cancel, methods=["POST"]),
            Route("/v1/info", routes.info),
            Route("/health/live", routes.live),
            Route("/health/ready", routes.ready),
            Route("/metrics", routes.metrics),
        ],
        exception_handlers={
            ServiceError: answer_service_error,
            HTTPException: answer_http_exception,
            ClientDisconnect: answer_nobody,
            Exception: answer_crash,
        },
    )


class _Routes:
    def __init__(self, lifecycle: Lifecycle, instruments: Instruments, max_body_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._instruments = instruments
        self._max_body_bytes = max_body_bytes
        self._engine_recorded = False

    async def generate(self, request: Request) -> EventStream:
        body = await self._read_body(request)
        engine = self._lifecycle.require_engine()
        wanted = decode_generate_request(body)
        events = EventQueue()
        ticket = engine.submit(wanted, events.put)
        return EventStream(
            engine, ticket, events, RequestRecord(self._instruments, wanted, extract_context(request.headers))
        )

    async def cancel(self, request: Request) -> Response:
        body = await self._read_body(request)
        engine = self._lifecycle.require_engine()
        engine.cancel(request.path_params["request_id"], decode_cancel_request(body))
        return Response(b"{}", media_type=_JSON)

    async def info(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return Response(encode(self._lifecycle.require_engine().info()), media_type=_JSON)

    async def live(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return Response(b'{"status":"alive"}', media_type=_JSON)

    async def ready(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        readiness = self._lifecycle.readiness
        return Response(encode(readiness), 200 if readiness.status == "ready" else 503, media_type=_JSON)

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        if not self._engine_recorded and self._lifecycle.readiness.status == "ready":
            self._instruments.record_engine(self._lifecycle.require_engine().info())
            self._engine_recorded = True
        page = self._instruments.telemetry.render_metrics()
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _read_body(self, request: Request) -> bytes:
        """Raises: RequestTooLarge."""
        chunks: list[bytes] = []
        num_bytes = 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes <= self._max_body_bytes:
                chunks.append(chunk)
            elif num_bytes > _DISCARD_FACTOR * self._max_body_bytes:
                break
        if num_bytes > self._max_body_bytes:
            raise RequestTooLarge(f"the body has over {self._max_body_bytes} bytes, the limit")
        return b"".join(chunks)
