"""An ASGI application behind a real socket, in a thread of the test process. Owns loop, port and a clean stop."""

import asyncio
import socket
import threading
import time
from types import TracebackType
from typing import Any

import uvicorn

START_TIMEOUT_S = 10.0


class ServerThread:
    """Serves app on a free loopback port between start() and stop(); the port stays the same over restarts."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self._app = app
        self.port = port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "ServerThread":
        """Listen and wait until the application is up."""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(128)
        self.port = self._listener.getsockname()[1]
        config = uvicorn.Config(
            self._app, loop="uvloop", http="httptools", ws="none", lifespan="on", log_config=None,
            access_log=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name=f"server-{self.port}", daemon=True)
        self._thread.start()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            assert self._thread.is_alive() and time.monotonic() < deadline_s, "the server did not start"
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """Let the application end its lifespan; a server that is not running is fine."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"
        self._server = None

    def _run(self) -> None:
        assert self._server is not None and self._listener is not None
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._server.serve(sockets=[self._listener]))

    def __enter__(self) -> "ServerThread":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
