"""The verb `test`: lint, format, types, import rules, tests; each step's outcome. Owns the steps and the tiers."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.console import Console, format_duration
from launcher.errors import EXIT_FAILED
from launcher.process import describe_exit, run_leashed
from launcher.settings import LauncherSettings, child_environment


@dataclass(frozen=True, slots=True)
class Tiers:
    """Which tests beyond the default ones run; those that need a GPU run only when asked for with pytest's -m."""

    full: bool = False
    release: bool = False

    def expression(self) -> str:
        """The marker expression for pytest."""
        excluded = [name for name, wanted in (("full", self.full), ("release", self.release)) if not wanted]
        return " and ".join(f"not {name}" for name in (*excluded, "gpu"))


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the verb `test`."""

    name: str
    command: tuple[str, ...]


def list_steps(settings: LauncherSettings, tiers: Tiers, pytest_arguments: Sequence[str]) -> list[Step]:
    """The steps in order; pytest is last, so that its summary ends the output."""
    tools = settings.venv / "bin"
    return [
        Step("ruff check", (str(tools / "ruff"), "check", "--quiet", ".", "soloist")),
        Step("ruff format", (str(tools / "ruff"), "format", "--quiet", "--check", ".", "soloist")),
        Step("mypy", (str(tools / "mypy"), "--no-error-summary")),
        Step("lint-imports", (str(tools / "lint-imports"), "--no-cache", "--no-logo")),
        Step("pytest", (str(tools / "python"), "-m", "pytest", "-m", tiers.expression(), *pytest_arguments)),
    ]


def run_steps(steps: Sequence[Step], settings: LauncherSettings, console: Console) -> int:
    """Run every step, also after a failed one; exit code 1 when any failed."""
    failed = []
    environ = child_environment(settings)
    for step in steps:
        console.line(f"── {step.name}")
        started_s = time.monotonic()
        returncode = run_leashed(step.command, environ=environ, cwd=settings.root)
        took = format_duration(time.monotonic() - started_s)
        sys.stdout.flush()
        if returncode != 0:
            failed.append(step.name)
            console.line(f"   {step.name} FAILED with {describe_exit(returncode)} after {took}")
        elif step is not steps[-1]:
            console.line(f"   ok, {took}")
    if failed:
        console.line(f"failed: {', '.join(failed)}")
    return EXIT_FAILED if failed else 0
