"""Status codes: the one place that knows which error is which. Owns the table and the body of every refusal."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from contracts.codec import encode
from contracts.errors import ServiceError
from contracts.generate import Failed

_STATUS = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "context_length_exceeded": HTTPStatus.BAD_REQUEST,
    "unsupported": HTTPStatus.BAD_REQUEST,
    "not_found": HTTPStatus.NOT_FOUND,
    "stale_lease": HTTPStatus.CONFLICT,
    "engine_busy": HTTPStatus.CONFLICT,
    "request_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "engine_loading": HTTPStatus.SERVICE_UNAVAILABLE,
    "shutting_down": HTTPStatus.SERVICE_UNAVAILABLE,
}


def answer_service_error(_request: Request, error: Exception) -> Response:
    """A refusal as its Failed body."""
    assert isinstance(error, ServiceError)
    headers = {} if error.retry_after_s is None else {"retry-after": str(max(1, round(error.retry_after_s)))}
    status = _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Response(encode(error.to_failed()), status, headers, "application/json")


def answer_http_exception(request: Request, error: Exception) -> Response:
    """An unknown route or method as a Failed body."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == HTTPStatus.NOT_FOUND else "invalid_request"
    failed = Failed(code, f"{request.method} {request.url.path}: {error.detail}", retryable=False)
    return Response(encode(failed), error.status_code, error.headers, "application/json")


def answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client left while it sent its body; nobody reads this."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


def answer_crash(_request: Request, _error: Exception) -> Response:
    """Our own bug as a Failed body; the server logs it."""
    failed = Failed("internal_error", "the engine failed on this request; see its log", retryable=False)
    return Response(encode(failed), HTTPStatus.INTERNAL_SERVER_ERROR, media_type="application/json")
