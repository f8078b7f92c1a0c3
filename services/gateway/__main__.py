"""`python -m gateway`: one gateway process. Owns socket, logging, signals and exit codes.

Exit codes: 0 after a clean stop, 1 when the address cannot be had, 2 when settings or model folder are refused. SIGTERM
and SIGINT drain: readiness false, new requests 503, running ones finish up to the drain limit; a second signal cuts.
"""

import asyncio
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from contracts.errors import SetupError
from gateway.app import create_app
from gateway.drain import Drain
from gateway.settings import GatewayConfig, read_config
from gateway.text.model_text import ModelMissing, ModelText, load_model_text

_LOG = logging.getLogger("gateway")
_CLOSE_TIMEOUT_S = 1
_BACKLOG = 512


class _Server(uvicorn.Server):
    """uvicorn that keeps listening while it drains, so that late requests get their 503."""

    def __init__(self, config: uvicorn.Config, drain: Drain, drain_s: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._drain_s = drain_s
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        if self._drain.draining:
            self.should_exit = self.force_exit = True
            return
        self._drain.begin()
        self._loop.call_soon_threadsafe(self._start_drain, signal.Signals(sig).name)

    def _start_drain(self, name: str) -> None:
        _LOG.info("%s: draining for up to %g s", name, self._drain_s)
        self._draining = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        await self._drain.finish(self._drain_s)
        self.should_exit = True


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        config = read_config()
        text = _load_text(config)
    except SetupError as error:
        sys.stderr.write(f"gateway: {error.message}\n")
        return 2
    logging.basicConfig(
        level=config.settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    host, port = config.settings.host, config.settings.port
    try:
        listener = socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
    except OSError as error:
        sys.stderr.write(f"gateway: cannot listen on {host}:{port}: {error.strerror or error}\n")
        return 1
    drain = Drain()
    server_config = uvicorn.Config(
        create_app(config, text=text, drain=drain),
        loop="uvloop", http="httptools", ws="none", lifespan="on",
        access_log=False, log_config=None, server_header=False,
        timeout_keep_alive=75, timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )  # fmt: skip
    _LOG.info("listening on http://%s:%d", host, listener.getsockname()[1])
    _Server(server_config, drain, config.settings.drain_s).run(sockets=[listener])
    return 0


def _load_text(config: GatewayConfig) -> ModelText | None:
    """A folder that is not there yet is waited for, a broken one stops the start."""
    try:
        return load_model_text(config.home, config.settings.model)
    except ModelMissing:
        return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


if __name__ == "__main__":
    sys.exit(main())
