"""One look at a service: ready or not, how far, and why not. Owns the probes, no waiting and no process."""

import http.client
import json
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 2.0
READY_PATH = "/health/ready"


@dataclass(frozen=True, slots=True)
class Probe:
    """progress is 0..1 where the service says it; message is its own word on why it is not ready.

    is_final says that waiting does not help.
    """

    is_ready: bool
    progress: float | None = None
    message: str | None = None
    is_final: bool = False


def probe_http(host: str, port: int) -> Probe:
    """GET /health/ready: 200 is ready, anything else is not yet."""
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", READY_PATH)
        response = connection.getresponse()
        body = response.read(65_536)
    except (OSError, http.client.HTTPException):
        return Probe(False)
    finally:
        connection.close()
    return _read_readiness(response.status, body)


def probe_redis(host: str, port: int) -> Probe:
    """PING over a plain connection; a server that wants a password answers too and counts as up."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(512)
    except ConnectionRefusedError:
        return Probe(False)  # not listening (yet): nothing more to say
    except OSError as error:
        return Probe(False, message=error.strerror or str(error))
    if answer.startswith((b"+PONG", b"-NOAUTH")):
        return Probe(True)
    message = answer.decode("utf-8", "replace").strip() or "closed the connection"
    return Probe(False, message=message, is_final=answer.startswith(b"-MISCONF"))  # it cannot write to its disk


def probe_redis_url(url: str) -> Probe:
    """Whether a server listens at redis://[user:password@]host:port; other schemes are left to the gateway."""
    parts = urlsplit(url)
    if parts.scheme != "redis" or parts.hostname is None:
        return Probe(True)
    probe = probe_redis(parts.hostname, parts.port or 6379)
    return probe if probe.is_ready or probe.message else Probe(False, message="connection refused")


def is_redis_url(url: str) -> bool:
    """Whether url is of a form that a Redis client takes."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return bool(parts.path)
        return parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def hide_password(url: str) -> str:
    """The address without its credentials, for messages."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]


def _read_readiness(status: int, body: bytes) -> Probe:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return Probe(status == http.client.OK)
    progress = fields.get("progress")
    return Probe(
        is_ready=status == http.client.OK,
        progress=float(progress) if isinstance(progress, int | float) else None,
        message=_read_message(fields),
    )


def _read_message(fields: dict[str, object]) -> str | None:
    """`message`, else the texts of `reasons`, in one line."""
    message, reasons = fields.get("message"), fields.get("reasons")
    if isinstance(message, str) and message:
        return message
    texts = [reason for reason in reasons if isinstance(reason, str)] if isinstance(reasons, list) else []
    return "; ".join(texts) or None
