"""What the launcher says about a service that is not ready or has ended."""

import http.server
import json
import threading

import pytest

from launcher.child import describe_end, is_routine
from launcher.health import Probe, probe_http


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"status": "not ready", "reasons": ["no Redis", "no engine"]}, "no Redis; no engine"),
        ({"status": "not ready", "reasons": ["no Redis"], "message": "waiting for Redis"}, "waiting for Redis"),
        ({"status": "not ready", "reasons": []}, None),
        ({"status": "not ready", "reasons": "odd", "message": 3}, None),
    ],
)
def test_the_gateways_reasons_are_read(body: dict[str, object], message: str | None) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = json.dumps(body).encode()
            self.send_response(503)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_args: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert probe_http("127.0.0.1", server.server_port) == Probe(False, message=message)
        thread.join()


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30 17:41:37,311 INFO    gateway: SIGTERM: draining for up to 20 s",
        "2026-11-30 17:41:37,311 WARNING opentelemetry.exporter: Transient error, retrying in 1s",
        "INFO: started",
        "10459:M 30 Nov 2026 17:41:38.929 # Valkey is now ready to exit, bye bye...",
        "7:M 30 Nov 2026 17:41:38.929 # WARNING Memory overcommit must be enabled!",
        "10459:M 30 Nov 2026 17:41:38.929 * Ready to accept connections",
        "10459:signal-handler (1796060498) Received SIGTERM scheduling shutdown...",
    ],
)
def test_a_routine_line_is_no_reason(line: str) -> None:
    assert is_routine(line)


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30 17:41:37,311 ERROR   engine: the device is lost",
        "does not fit: needs 2 bytes, has 1",
        "ENGINE_PORT='x': Expected `int`, got `str`",
        "7:M 30 Nov 2026 17:41:38.929 # Warning: Could not create server TCP listening socket 127.0.0.1:1: in use",
    ],
)
def test_a_fault_is_a_reason(line: str) -> None:
    assert not is_routine(line)


def test_a_signal_is_its_own_reason() -> None:
    assert describe_end("engine", -9, "words") == "engine ended with signal SIGKILL"
    assert describe_end("engine", 3, "words") == "engine ended with exit code 3: words"
    assert describe_end("engine", 3, "") == "engine ended with exit code 3, without a message"
