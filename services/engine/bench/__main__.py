"""`python -m engine.bench decode|prefill|codec`: starts the benchmark in this process's place. Owns the names.

The numerical libraries read their thread settings from the environment when they are loaded, as in `python -m engine`.
"""

import os
import sys

from engine.settings import library_environment

_MODULES = {"decode": "engine.bench.speed", "prefill": "engine.bench.speed", "codec": "engine.bench.codec"}


def main(arguments: list[str]) -> int:
    """Become the benchmark; returns only when there is none of that name."""
    if not arguments or arguments[0] not in _MODULES:
        sys.stderr.write(f"usage: python -m engine.bench {{{','.join(_MODULES)}}} [--help]\n")
        return 2
    what, rest = arguments[0], arguments[1:]
    given = rest if what == "codec" else [what, *rest]
    os.execve(sys.executable, [sys.executable, "-m", _MODULES[what], *given], library_environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
