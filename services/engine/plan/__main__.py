"""`python -m engine.plan [memory] ...`: the process edge of planning. Owns the choice of the kind and exit codes."""

import sys
from collections.abc import Sequence

import msgspec

from contracts.errors import SetupError
from contracts.plan_arguments import memory_parser, split_kind
from contracts.settings import resolve_home
from engine.plan.command import plan_memory
from engine.plan.table import render
from engine.settings import read_environment

EXIT_FITS, EXIT_REFUSED = 0, 2


def main(arguments: Sequence[str]) -> int:
    """Print the report and return the exit code: 0 fits, 2 does not fit or cannot be planned."""
    _, own = split_kind(arguments)
    options = memory_parser("plan").parse_args(own)
    try:
        report = plan_memory(options, resolve_home(read_environment()))
    except SetupError as error:
        sys.stderr.write(f"plan: {error.message}\n")
        return EXIT_REFUSED
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n" if options.json else render(report))
    return EXIT_FITS if report.fits else EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
