"""The one error vocabulary. A ServiceError is the caller's or the world's fault; our own bugs stay assertions.

Owns code, retryability and parameters of each fault. Does not know HTTP: each service maps codes to status at its edge.
"""

from typing import ClassVar

from contracts.generate import Failed


class ServiceError(Exception):
    """A fault with a stable code and a message that names the offending value and the limit.

    param names the request field at fault, in the caller's spelling; retry_after_s is set where waiting helps.
    """

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def to_failed(self) -> Failed:
        """The event or body that carries this fault between processes."""
        return Failed(code=self.code, message=self.message, retryable=self.retryable)


class InvalidRequest(ServiceError):
    """A field is missing, of the wrong type or out of range."""

    code = "invalid_request"


class SingleChoiceOnly(InvalidRequest):
    """More (or fewer) than one reply was asked for; there is one sequence."""

    code = "n_not_supported"


class ContextTooLong(ServiceError):
    """The prompt leaves no room for one token in the context window."""

    code = "context_length_exceeded"

    def __init__(self, num_tokens: int, limit: int, *, param: str | None = None) -> None:
        super().__init__(f"prompt has {num_tokens} tokens, the context limit is {limit}", param=param)
        self.num_tokens = num_tokens
        self.limit = limit


class NotFound(ServiceError):
    """A route, model or request id that does not exist."""

    code = "not_found"


class InvalidApiKey(ServiceError):
    """The caller's key is missing or unknown."""

    code = "invalid_api_key"


class RequestTooLarge(ServiceError):
    """The body exceeds the byte limit."""

    code = "request_too_large"


class StaleLease(ServiceError):
    """The fence is lower than the last one the engine saw."""

    code = "stale_lease"


class EngineBusy(ServiceError):
    """The engine runs one request and holds one more; the gateway owns the queue."""

    code = "engine_busy"
    retryable = True


class EngineLoading(ServiceError):
    """The engine has not finished starting."""

    code = "engine_loading"
    retryable = True


class EngineLost(ServiceError):
    """The connection to the engine broke or could not be made."""

    code = "engine_lost"
    retryable = True


class QueueFull(ServiceError):
    """The turnstile holds as many tickets as it may."""

    code = "server_is_overloaded"
    retryable = True


class QueueUnavailable(ServiceError):
    """The store behind the turnstile does not answer."""

    code = "server_is_overloaded"
    retryable = True


class ShuttingDown(ServiceError):
    """The service drains and takes no new work."""

    code = "shutting_down"
    retryable = True


class OutOfMemory(ServiceError):
    """The device could not hold what the request needed."""

    code = "out_of_memory"


class NumericalError(ServiceError):
    """Logits were not finite; the state that made them is never stored."""

    code = "numerical_error"


class EmbeddingExpired(ServiceError):
    """An image embedding is no longer held and must be encoded again."""

    code = "embedding_expired"
    retryable = True


class Unsupported(ServiceError):
    """A known field asks for what this model or build does not have."""

    code = "unsupported"


class SetupError(ServiceError):
    """Start-up cannot go on: settings, files, memory or ports; the message says the fix."""

    code = "setup_error"


def from_failed(failed: Failed) -> ServiceError:
    """The error a Failed stands for; an unknown code becomes a plain ServiceError that keeps the message."""
    for kind in _all_kinds(ServiceError):
        if kind.code == failed.code and kind not in (ContextTooLong, QueueUnavailable):
            return kind(failed.message)
    return ServiceError(f"{failed.code}: {failed.message}")


def _all_kinds(kind: type[ServiceError]) -> list[type[ServiceError]]:
    kinds = [kind]
    for child in kind.__subclasses__():
        kinds += _all_kinds(child)
    return kinds
