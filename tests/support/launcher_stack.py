"""Runs the launcher with fake services in real processes and tells what happened. Ends only what it started."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKE_SOLOIST = Path(__file__).with_name("fake_soloist.py")
WAIT_S = 15.0


def wait_until(condition: Callable[[], object], what: str, *, timeout_s: float = WAIT_S) -> None:
    """Poll until condition() is truthy."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class FakeStack:
    """One home with its own fake environment; behaviour of the fakes is set with behave()."""

    def __init__(self, folder: Path, venv: Path | None = None) -> None:
        self.home = folder / "home"
        self.venv = venv or folder / "venv"
        self._events = folder / "events"
        self._output = folder / "output"
        self._started: list[subprocess.Popen[bytes]] = []
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "services"),
            "SOLOIST_HOME": str(self.home),
            "SOLOIST_VENV": str(self.venv),
            "FAKE_EVENTS": str(self._events),
        }

    def behave(self, **variables: str) -> None:
        """Set environment variables of everything started from now on."""
        self.environ |= variables

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """One verb to its end."""
        return subprocess.run(
            self._command(arguments), env=self.environ, capture_output=True, text=True, timeout=60, check=False
        )

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """One verb in the background, its output in a file; see output()."""
        with self._output.open("wb") as output:
            process = subprocess.Popen(
                self._command(arguments), env=self.environ, stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(process)
        return process

    def start_ready(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """`up` in the foreground on a free port, ready."""
        process = self.start("up", "--port", "0", *arguments)
        wait_until(lambda: "Soloist is ready" in self.output() or process.poll() is not None, "ready")
        assert process.poll() is None, self.output()
        return process

    def output(self) -> str:
        """What the last started verb printed so far."""
        return self._output.read_text(encoding="utf-8")

    def events(self) -> list[str]:
        """What the fakes wrote down, without pids."""
        return [" ".join(line.split()[:2]) for line in self._lines()]

    def clear_events(self) -> None:
        """Forget what happened so far."""
        self._events.unlink(missing_ok=True)

    def pids(self, name: str) -> list[int]:
        """Pids under which a fake has started."""
        return [int(line.split()[2]) for line in self._lines() if line.startswith(f"{name} start")]

    def all_pids(self) -> list[int]:
        """Pids of every fake that ever started."""
        return [int(line.split()[2]) for line in self._lines() if re.fullmatch(r"\w+ start \d+", line)]

    def assert_nothing_runs(self) -> None:
        """No fake is left."""
        wait_until(lambda: not any(map(runs, self.all_pids())), "the end of every child", timeout_s=3.0)

    def close(self) -> None:
        """End what is left."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if (self.home / "run" / "stack.json").exists():
            self.run("down")

    def _lines(self) -> list[str]:
        return self._events.read_text(encoding="utf-8").splitlines() if self._events.exists() else []

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, str(FAKE_SOLOIST), *arguments]


@contextlib.contextmanager
def open_fake_stack(folder: Path, venv: Path | None = None) -> Iterator[FakeStack]:
    """A FakeStack that is closed in the end; venv is one that is made already."""
    stack = FakeStack(folder, venv)
    try:
        yield stack
    finally:
        stack.close()
