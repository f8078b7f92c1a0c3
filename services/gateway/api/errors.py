"""Faults as clients of the OpenAI APIs see them: status, body, event. Owns the one table from error codes to HTTP.

Every body and event carries the request id that is also in the x-request-id header. Messages of our own bugs and of
unknown engine faults stay in the log.
"""

import math
from dataclasses import dataclass

import msgspec

from contracts.errors import ContextTooLong, ServiceError
from gateway.wire.sse import encode_data

_STATUS = {
    "invalid_request": 400,
    "n_not_supported": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_too_large": 413,
    "server_is_overloaded": 503,
    "engine_busy": 503,
    "engine_loading": 503,
    "engine_lost": 503,
    "stale_lease": 503,
    "shutting_down": 503,
    "out_of_memory": 503,
    "embedding_expired": 503,
    "numerical_error": 500,
}
_INTERNAL = ServiceError.code
_DEFAULT_RETRY_S = 1.0
_ENCODE = msgspec.json.Encoder().encode


class MethodNotAllowed(ServiceError):
    """The route exists, with another method."""

    code = "method_not_allowed"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A fault as an HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


def render_error(error: ServiceError, request_id: str) -> ErrorReply:
    """Status, headers and body of a request that failed before its first byte."""
    status = _STATUS.get(error.code, 500)
    headers = {"content-type": "application/json"}
    if status == 503:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or _DEFAULT_RETRY_S)))
    return ErrorReply(status, headers, _ENCODE(_payload(error, request_id)))


def render_error_event(error: ServiceError, request_id: str) -> bytes:
    """The last event of a stream that failed after its first byte."""
    return encode_data(_ENCODE(_payload(error, request_id)))


def _payload(error: ServiceError, request_id: str) -> dict[str, object]:
    status = _STATUS.get(error.code, 500)
    return {
        "error": {
            "message": _message(error, request_id),
            "type": "invalid_request_error" if status < 500 else "server_error",
            "param": error.param,
            # The hosted API gives no code to a field that is merely wrong; param says which one it is.
            "code": None if error.code == "invalid_request" else error.code,
        },
        "request_id": request_id,
    }


def _message(error: ServiceError, request_id: str) -> str:
    if isinstance(error, ContextTooLong):
        # Agents know an overflow by this text.
        return (
            f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
            f"{error.num_tokens} tokens. Please reduce the length of the messages."
        )
    if error.code == _INTERNAL:
        return f"internal error; the gateway's log has the details of request {request_id}"
    return error.message
