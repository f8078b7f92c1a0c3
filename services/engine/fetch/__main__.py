"""`python -m engine.fetch NAME [--verify]`: puts a model into the home folder. Owns arguments, signals and exit codes.

Exit codes: 0 the folder is whole; 1 it could not be made, no half-made folder is left; 2 the model is not supported.
Progress and errors go to stderr.
"""

import argparse
import sys

from contracts.errors import SetupError
from contracts.settings import resolve_home
from engine.fetch.install import ensure_model
from engine.progress import ProgressLine
from engine.registry import HubSource, lookup, supported_names
from engine.settings import read_environment
from engine.unwind import unwind_on_signals

OK, FAILED, REFUSED = 0, 1, 2


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="engine.fetch", description="Download a model into the Soloist home folder.")
    parser.add_argument("name", help=f"one of: {', '.join(supported_names())}")
    parser.add_argument("--verify", action="store_true", help="read every file of a present model and compare digests")
    options = parser.parse_args(arguments)
    progress = ProgressLine(sys.stderr)
    try:
        model = lookup(options.name)
    except SetupError as error:
        return _end(progress, REFUSED, error.message)
    environ = read_environment()
    try:
        folder = ensure_model(model, resolve_home(environ), environ, progress, verify=options.verify)
    except SetupError as error:
        return _end(progress, FAILED, error.message)
    except KeyboardInterrupt:
        kept = "what is done was kept" if isinstance(model.source, HubSource) else "nothing was kept"
        return _end(progress, FAILED, f"fetching {options.name} was interrupted; {kept}")
    return _end(progress, OK, f"{options.name} is in {folder.path} ({folder.num_bytes / 1e6:.0f} MB)")


def _end(progress: ProgressLine, code: int, message: str) -> int:
    progress.close()
    sys.stderr.write(message + "\n" if code == OK else f"soloist: {message}\n")
    return code


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main(sys.argv[1:]))
