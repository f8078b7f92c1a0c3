"""A model hub on loopback: lists one repository's files and serves them, by the public HTTP interface of the hub.

Can stop in the middle of a large file, and counts the bytes it sent.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


@dataclass(slots=True)
class HubServer:
    """repository "owner/name" with files by path; a file longer than stall_after stops there until it is None."""

    repository: str
    files: Mapping[str, bytes]
    stall_after: int | None = None
    url: str = ""
    served: list[str] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make the hub's client use this server and no proxy."""
        return {"HF_ENDPOINT": self.url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}

    @contextmanager
    def serving(self) -> Iterator["HubServer"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def _answer(self, *, send_body: bool) -> None:
        path = self.path.partition("?")[0]
        api = f"/api/models/{self.hub.repository}"
        if path.startswith(f"{api}/tree/"):
            return self._json([_entry(name, content) for name, content in self.hub.files.items()])
        if path == api or path.startswith(f"{api}/revision/"):
            siblings = [{"rfilename": name} for name in self.hub.files]
            return self._json({"id": self.hub.repository, "sha": COMMIT, "siblings": siblings, "private": False})
        name = path.rpartition("/")[2]
        if not path.startswith(f"/{self.hub.repository}/resolve/") or name not in self.hub.files:
            self.send_error(404)
            return None
        return self._file(name, self.hub.files[name], send_body=send_body)

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, name: str, content: bytes, *, send_body: bool) -> None:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked.startswith("bytes=") else 0
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not send_body:
            return
        self.hub.served.append(name)
        stop = self.hub.stall_after
        self.wfile.write(content[start:] if stop is None or len(content) <= stop else content[start : start + stop])
        if stop is not None and len(content) > stop:
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.closing.wait()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _entry(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": name}
