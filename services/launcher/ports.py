"""Listening addresses before anybody listens: free, taken, and by whom. Owns the checks, opens no service."""

import errno
import http.client
import json
import socket

from launcher.errors import LauncherError

LOOPBACK = "127.0.0.1"
_PROBE_TIMEOUT_S = 1.0
_MODELS_BYTES_MAX = 1 << 20


def pick_free_port(host: str) -> int:
    """A port that was free a moment ago; the service that gets it says so itself if it lost the race."""
    with _open_socket(host) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
    return port


def check_port_free(host: str, port: int, *, setting: str) -> None:
    """Raises: LauncherError naming the port, its holder if that is a Soloist, and the setting that moves it."""
    problem = find_port_problem(host, port)
    if problem is not None:
        raise LauncherError(f"{problem}; choose another with {setting}")


def find_port_problem(host: str, port: int) -> str | None:
    """Why nothing can listen there, None when something can."""
    with _open_socket(host) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except socket.gaierror as error:
            return f"{host} is not an address of this machine ({error.strerror})"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                holder = "another Soloist" if is_soloist(host, port) else "another program"
                return f"port {port} on {host} is in use by {holder}"
            return f"cannot listen on port {port} of {host}: {error.strerror}"
    return None


def is_soloist(host: str, port: int) -> bool:
    """Whether what answers at the port lists models owned by soloist."""
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/models")
        listed = json.loads(connection.getresponse().read(_MODELS_BYTES_MAX))
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    models = listed.get("data") if isinstance(listed, dict) else None
    return isinstance(models, list) and any(isinstance(m, dict) and m.get("owned_by") == "soloist" for m in models)


def local_host(host: str) -> str:
    """A listening address as a local client writes it in a URL."""
    if host in ("0.0.0.0", "", "::"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def _open_socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
