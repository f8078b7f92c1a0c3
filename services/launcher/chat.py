"""The verb `chat`: one question to a running stack, the answer as it is generated. Owns a small client, no state.

Standard library only, so that it works beside any server; every fault is one line.
"""

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

from launcher.errors import EXIT_REFUSED, LauncherError

_CONNECT_TIMEOUT_S = 10.0
_SILENCE_TIMEOUT_S = 600.0
_LINE_BYTES_MAX = 1 << 20


def stream_answer(base_url: str, text: str, write: Callable[[str], object]) -> None:
    """Send one user message and pass the answer's pieces on; base_url with or without /v1.

    Raises: LauncherError when the server cannot be reached, refuses, or ends the answer with an error.
    """
    parts = _parse_url(base_url)
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    try:
        with contextlib.closing(_connect(parts)) as connection:
            model = _first_model(connection, prefix)
            body = {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
            headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
            connection.request("POST", f"{prefix}/v1/chat/completions", json.dumps(body), headers)
            if connection.sock is not None:
                connection.sock.settimeout(_SILENCE_TIMEOUT_S)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise LauncherError(_refusal(response))
            for piece in _read_pieces(response):
                write(piece)
    except ssl.SSLError as error:
        raise LauncherError(_tls_fault(base_url, error)) from error
    except TimeoutError as error:
        raise LauncherError(f"{base_url} does not answer in time") from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise LauncherError(f"cannot talk to {base_url}: {reason}; is it running? (./soloist up)") from error


def _tls_fault(base_url: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{base_url} shows a certificate that is not trusted here: {error.verify_message}"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        plain = base_url.replace("https://", "http://", 1)
        return f"{base_url} does not speak https; try --url {plain}"
    return f"no https connection to {base_url}: {error.reason or error}"


def _parse_url(base_url: str) -> SplitResult:
    parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
    try:
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise LauncherError(f"--url {base_url}: expected http://HOST:PORT", exit_code=EXIT_REFUSED)
    return parts


def _connect(parts: SplitResult) -> http.client.HTTPConnection:
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_CONNECT_TIMEOUT_S, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_CONNECT_TIMEOUT_S)


def _first_model(connection: http.client.HTTPConnection, prefix: str) -> str:
    connection.request("GET", f"{prefix}/v1/models")
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise LauncherError(_refusal(response))
    listed = _parse_object(response.read())
    with contextlib.suppress(LookupError, TypeError):
        return str(listed["data"][0]["id"])
    raise LauncherError("the server lists no model")


def _read_pieces(response: http.client.HTTPResponse) -> Iterator[str]:
    while line := response.readline(_LINE_BYTES_MAX):
        field, _, value = line.strip().partition(b":")
        if field != b"data":
            continue  # comments keep the connection alive
        if value.strip() == b"[DONE]":
            return
        event = _parse_object(value)
        if "error" in event:
            raise LauncherError(_error_text(event) or "the answer ended with an error")
        for choice in event.get("choices") or ():
            content = (choice.get("delta") or {}).get("content")
            if content:
                yield content
    raise LauncherError("the answer was cut off: the server closed the connection")


def _refusal(response: http.client.HTTPResponse) -> str:
    try:
        text = _error_text(_parse_object(response.read(_LINE_BYTES_MAX)))
    except LauncherError:
        text = None
    return f"refused with status {response.status}: {text or response.reason}"


def _error_text(body: dict[str, Any]) -> str | None:
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return message.replace("\n", " ") if isinstance(message, str) else None


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise LauncherError("the answer is not JSON: is this an OpenAI-compatible server?") from error
    if not isinstance(parsed, dict):
        raise LauncherError("the answer is not a JSON object: is this an OpenAI-compatible server?")
    return parsed
