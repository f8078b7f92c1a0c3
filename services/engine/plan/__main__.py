"""`python -m engine.plan [memory] ...`: the process edge of planning. Owns the choice of the kind and exit codes."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from contracts.errors import SetupError
from contracts.plan_arguments import parse_plan
from contracts.settings import resolve_home
from engine.plan.command import plan_memory
from engine.plan.table import render
from engine.settings import read_environment

EXIT_FITS, EXIT_REFUSED = 0, 2


def main(arguments: Sequence[str]) -> int:
    """Print the answer and return the exit code: 0 fits, 2 does not fit or cannot be planned."""
    kind, options = parse_plan("plan", arguments)
    try:
        return _KINDS[kind](options)
    except SetupError as error:
        sys.stderr.write(f"plan: {error.message}\n")
        return EXIT_REFUSED


def _memory(options: argparse.Namespace) -> int:
    report = plan_memory(options, resolve_home(read_environment()))
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n" if options.json else render(report))
    return EXIT_FITS if report.fits else EXIT_REFUSED


_KINDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {"memory": _memory}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
