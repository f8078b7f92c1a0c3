"""Liveness, readiness with its reasons, metrics, and the root probe. Owns nothing; reports what others know."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from gateway.api.gateway import Gateway


def health_routes(gateway: Gateway) -> APIRouter:
    """The routes of this file."""
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> JSONResponse:
        """The process runs, whatever else does not."""
        return JSONResponse({"status": "alive"})

    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        """Whether a request could run now; every reason that it could not."""
        reasons = _find_reasons(gateway)
        if reasons:
            return JSONResponse(
                {"status": "not ready", "message": reasons[0], "reasons": reasons}, 503, {"retry-after": "2"}
            )
        return JSONResponse({"status": "ready", "model": gateway.model})

    @router.get("/metrics")
    async def metrics() -> Response:
        """The Prometheus text page."""
        return Response(gateway.telemetry.render_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/")
    async def root() -> JSONResponse:
        """What this is and where the API is, for people and for clients that probe."""
        routes = ["POST /v1/chat/completions", "GET /v1/models", "GET /health/ready", "GET /metrics"]
        about = "Soloist gateway, an OpenAI-compatible chat API"
        return JSONResponse({"about": about, "model": gateway.model, "routes": routes, "schema": "/openapi.json"})

    return router


def _find_reasons(gateway: Gateway) -> list[str]:
    reasons = []
    if gateway.drain.draining:
        reasons.append("the gateway is shutting down")
    if not gateway.turnstile.healthy:
        reasons.append(f"{gateway.turnstile.trouble} (Redis)")
    if gateway.readiness.blocker is not None:
        reasons.append(gateway.readiness.blocker.message)
    return reasons
