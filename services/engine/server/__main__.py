"""`python -m engine.server`: the engine process proper, started by `python -m engine`. Owns logging and refusals."""

import logging
import sys

from contracts.errors import SetupError
from contracts.observability import start_telemetry
from engine import VERSION
from engine.registry import lookup
from engine.server.process import EXIT_FAILED, EXIT_REFUSED, open_listener, serve
from engine.settings import read_config
from engine.startup import plan_engine


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        config = read_config()
        _start_logging(config.settings.log_level)
        plan = plan_engine(config, lookup(config.settings.model).spec)
    except SetupError as error:
        sys.stderr.write(f"engine: {error.message}\n")
        return EXIT_REFUSED
    host, port = config.settings.host, config.settings.port
    try:
        listener = open_listener(host, port)
    except OSError as error:
        sys.stderr.write(f"engine: cannot listen on {host}:{port}: {error.strerror or error}\n")
        return EXIT_FAILED
    telemetry = start_telemetry("soloist-engine", VERSION, config.otlp_endpoint)
    try:
        return serve(plan, config.settings, telemetry, listener)
    finally:
        telemetry.shutdown()


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
