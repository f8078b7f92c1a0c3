"""`python -m engine.server`: the engine process proper, started by `python -m engine`. Owns the choice of the model."""

import sys

from contracts.errors import SetupError
from engine.registry import lookup
from engine.server.process import refuse, run_engine
from engine.settings import read_config


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        config = read_config()
        spec = lookup(config.settings.model).spec
    except SetupError as error:
        return refuse(error)
    return run_engine(config, spec)


if __name__ == "__main__":
    sys.exit(main())
