"""A small program in the place of engine, gateway, Redis, fetch and so on, for tests of the launcher. Runs by path.

    python fake_service.py engine|gateway|redis|fetch|models|plan [ARGUMENT...]

What it does is told by FAKE_<NAME>, words separated by commas: load=S (not ready for S seconds), die=S (exit 7 after S
seconds), refuse (exit 2 at once), deaf (ignores SIGTERM), child (starts a child of its own), slow=S (takes S to stop),
once (die only in the first run), full (a Redis that cannot write). It appends what happens to the file FAKE_EVENTS.
"""

import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def note(text: str) -> None:
    with Path(os.environ["FAKE_EVENTS"]).open("a", encoding="utf-8") as events:
        events.write(text + "\n")


def words(name: str) -> dict[str, float]:
    given = {}
    for word in filter(None, os.environ.get(f"FAKE_{name.upper()}", "").split(",")):
        key, _, value = word.partition("=")
        given[key] = float(value or 1)
    return given


class Handler(http.server.BaseHTTPRequestHandler):
    """Readiness after the loading time, and the model list of a Soloist gateway."""

    name = ""
    ready_at_s = 0.0
    load_s = 1.0

    def do_GET(self) -> None:
        left_s = self.ready_at_s - time.monotonic()
        body: dict[str, Any] = {"data": [{"id": "fake", "owned_by": "soloist"}]}
        if self.path == "/health/ready":
            body = {"status": "loading" if left_s > 0 else "ready", "progress": 1 - max(left_s, 0.0) / self.load_s}
        answer = json.dumps(body).encode()
        self.send_response(503 if self.path == "/health/ready" and left_s > 0 else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args: object) -> None:
        return


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers several clients; its threads end with it."""

    daemon_threads = True


class Pong(socketserver.StreamRequestHandler):
    """The PING of Redis."""

    def handle(self) -> None:
        answer = b"-MISCONF Errors writing to the AOF file: No space left" if "full" in words("redis") else b"+PONG"
        while self.rfile.readline().strip() == b"PING":
            self.wfile.write(answer + b"\r\n")


def serve(name: str, port: int) -> None:
    behavior = words(name)
    run = Path(os.environ["FAKE_EVENTS"]).with_name(f"{name}.runs")
    is_first = not run.exists()
    run.touch()
    note(f"{name} start {os.getpid()}")
    if "refuse" in behavior:
        sys.stderr.write("does not fit: needs 2 bytes, has 1\n")
        sys.exit(2)

    def stop(*_: object) -> None:
        note(f"{name} term")
        if "deaf" not in behavior:
            time.sleep(behavior.get("slow", 0))
            note(f"{name} stop")
            os._exit(0)

    def die() -> None:
        sys.stderr.write(f"{name}: the last words\n")
        note(f"{name} die")
        os._exit(7)

    signal.signal(signal.SIGTERM, stop)
    if "child" in behavior:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        note(f"grandchild start {child.pid}")
    if "die" in behavior and (is_first or "once" not in behavior):
        threading.Timer(behavior["die"], die).start()
    sys.stderr.write(f"{name} says hello with model {os.environ.get(name.upper() + '_MODEL')}\n")
    if name == "redis":
        sys.stderr.write("7:M 30 Nov 2026 17:41:38.929 # WARNING Memory overcommit must be enabled! Without it\n")
    Handler.name = name
    Handler.load_s = behavior.get("load", 0.01)
    Handler.ready_at_s = time.monotonic() + behavior.get("load", 0.0)
    server = Server(("127.0.0.1", port), Handler) if name != "redis" else socketserver.ThreadingTCPServer(
        ("127.0.0.1", port), Pong
    )  # fmt: skip
    server.serve_forever(poll_interval=0.05)


def main(name: str, arguments: list[str]) -> int:
    if name == "fetch":
        note(f"fetch {arguments[0]}")
        if "refuse" in words("fetch"):
            sys.stderr.write(f"unknown model {arguments[0]}\n")
            return 2
        return 0
    if name == "models":
        sys.stdout.write(json.dumps({"models": [{"name": "smollm2-135m", "present": False, "fault": None}]}) + "\n")
        return 0
    if name == "plan":
        sys.stdout.write(json.dumps(arguments) + "\n")
        return 2
    port = int(arguments[arguments.index("--port") + 1] if name == "redis" else os.environ[f"{name.upper()}_PORT"])
    serve(name, port)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
