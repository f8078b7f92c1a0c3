"""Commands and timings of the container run: one line per step on stderr. Owns no Docker knowledge.

A command that fails raises StepFailed with its last output; a machine that cannot do the run raises Unavailable.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

OUTPUT_TAIL_CHARS = 4000


class Unavailable(Exception):
    """This machine cannot run the containers; the message says why and what would help."""


class StepFailed(Exception):
    """A command or a check failed; the message holds its last output."""


class Steps:
    """Runs commands with one environment, keeps seconds per step, prints as it goes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what happens inside under this name."""
        print(f"... {name}", file=sys.stderr, flush=True)
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        print(f"    {name}: {self.seconds[name]} s", file=sys.stderr, flush=True)

    def run(self, command: Sequence[str | Path], *, timeout_s: float = 600, cwd: Path | None = None) -> str:
        """Standard output of a command at low priority; raises StepFailed when it fails or takes too long."""
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                ["nice", *words], env=self.environ, cwd=cwd, capture_output=True, text=True, timeout=timeout_s,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"{' '.join(words)}: no end after {timeout_s} s") from error
        if done.returncode != 0:
            tail = (done.stdout + done.stderr)[-OUTPUT_TAIL_CHARS:]
            raise StepFailed(f"{' '.join(words)}: exit {done.returncode}\n{tail}")
        return done.stdout

    def succeeds(self, command: Sequence[str | Path], *, timeout_s: float = 60) -> bool:
        """Whether the command exists and exits 0."""
        try:
            self.run(command, timeout_s=timeout_s)
        except (StepFailed, OSError):
            return False
        return True


def is_root() -> bool:
    """Packages and a daemon of our own need root."""
    return os.geteuid() == 0
