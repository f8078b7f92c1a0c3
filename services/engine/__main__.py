"""`python -m engine`: help and refusals without torch, then the server in this process's place. Owns exit code 2 early.

The numerical libraries read their thread settings from the environment when they are loaded, so the server is started
by exec with those set. The process id stays, so signals and parents notice nothing.
"""

import argparse
import os
import sys

from contracts.errors import SetupError
from engine.model_home import open_folder
from engine.registry import lookup
from engine.settings import HELP, library_environment, read_config


def main(arguments: list[str]) -> int:
    """Check what can be checked cheaply and become the server; returns only to refuse."""
    parser = argparse.ArgumentParser(
        prog="engine", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    try:
        config = read_config()
        lookup(config.settings.model)
        open_folder(config.home, config.settings.model)
    except SetupError as error:
        sys.stderr.write(f"engine: {error.message}\n")
        return 2
    os.execve(sys.executable, [sys.executable, "-m", "engine.server"], library_environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
