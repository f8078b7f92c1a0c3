"""GET /v1/models and /v1/models/{id}: the one served model with its window in every spelling clients read."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from contracts.errors import NotFound
from gateway.api.gateway import Gateway


def model_routes(gateway: Gateway) -> APIRouter:
    """The routes of this file."""
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> JSONResponse:
        """The served model as a list of one."""
        return JSONResponse({"object": "list", "data": [await _entry(gateway)]})

    @router.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> JSONResponse:
        """The served model; completions accept any name, this route knows only the real one."""
        if model_id != gateway.model:
            raise NotFound(f"model {model_id!r} is not served here; served is {gateway.model}", param="model")
        return JSONResponse(await _entry(gateway))

    return router


async def _entry(gateway: Gateway) -> dict[str, object]:
    # The window is the running engine's, which may be smaller than the model's; before it is known there is no number.
    info = gateway.readiness.last_info or (await gateway.readiness.require()).info
    window = info.context_limit
    return {
        "id": gateway.model,
        "object": "model",
        "created": gateway.created_s,
        "owned_by": "soloist",
        "context_length": window,
        "context_window": window,
        "max_model_len": window,
        "max_output_tokens": window,
        "meta": {"n_ctx": window},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "input_modalities": ["text"],
    }
