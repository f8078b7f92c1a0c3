"""One service as a child process: start, its lines into the log, its end in words. Owns the process, not the decision.

The stack decides when to start, stop and restart; a child only obeys and reports.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher.console import Console
from launcher.health import Probe
from launcher.process import ProcessName, describe_exit, has_ended, identify, kill_group, spawn_leashed

_LINE_BYTES_MAX = 65_536
_PUMP_JOIN_S = 1.0
_ROUTINE_LEVEL = re.compile(r"(?:\d{4}-\d\d-\d\d[T ][\d:,.]+Z? +)?\[?(?:DEBUG|INFO|NOTICE|WARNING|WARN)\b")
_REDIS_LINE = re.compile(
    r"\d+:(?:[A-Z] .*? |signal-handler \(\d+\) )(?:[-.*] |# (?:WARNING|User requested|Valkey is now|Redis is now)|Rec)"
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to run one service; grace_s is what it gets between SIGTERM and SIGKILL.

    Lines that hold noise are not shown.
    """

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path
    port: int
    probe: Callable[[], Probe]
    grace_s: float
    noise: str | None = None


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended: exit code (or minus the signal) and one line with its last words."""

    returncode: int
    reason: str


def describe_end(name: str, returncode: int, last_words: str) -> str:
    """One line: a signal speaks for itself, an exit code is explained by what the service said last."""
    ending = f"{name} ended with {describe_exit(returncode)}"
    if returncode < 0:
        return ending
    return f"{ending}: {last_words}" if last_words else f"{ending}, without a message"


def is_routine(line: str) -> bool:
    """Whether a line reports no fault: a level below ERROR, or a Redis line that is no error."""
    return _ROUTINE_LEVEL.match(line) is not None or _REDIS_LINE.match(line) is not None


class Child:
    """A service and, while it runs, its process."""

    def __init__(self, spec: ChildSpec, console: Console, *, color_index: int) -> None:
        self.spec = spec
        self.is_ready = False
        self._console = console
        self._color_index = color_index
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._last_words = ""

    @property
    def name(self) -> str:
        """Short name of the service."""
        return self.spec.name

    @property
    def is_running(self) -> bool:
        """Whether it was started and its end was not collected yet."""
        return self._process is not None

    def start(self) -> None:
        """Run the program. Effects: call from the main thread only; a thread copies its lines to the log."""
        assert self._process is None, f"{self.name} already runs"
        self.is_ready = False
        self._last_words = ""
        self._process = spawn_leashed(
            self.spec.command, environ=self.spec.environ, cwd=self.spec.cwd, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._pump = threading.Thread(
            target=self._copy_lines, args=(self._process.stdout,), name=f"log-{self.name}", daemon=True
        )
        self._pump.start()

    def process_name(self) -> ProcessName | None:
        """The running process, None when there is none."""
        return identify(self._process.pid) if self._process is not None else None

    def collect_end(self) -> ChildEnd | None:
        """How the process ended, None while it runs (or never started). Effects: it may be started again after."""
        if self._process is None or not has_ended(self._process):
            return None
        assert self._pump is not None
        self._pump.join(_PUMP_JOIN_S)
        returncode = self._process.returncode
        self._process = None
        self.is_ready = False
        return ChildEnd(returncode, describe_end(self.name, returncode, self._last_words))

    def send_stop(self) -> None:
        """Ask the process to end."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and all it started, now."""
        if self._process is not None:
            kill_group(self._process)

    def _copy_lines(self, pipe: IO[bytes]) -> None:
        with pipe:
            while raw := pipe.readline(_LINE_BYTES_MAX):
                text = raw.decode("utf-8", "replace").rstrip()
                if text and not (self.spec.noise and self.spec.noise in text):
                    self._last_words = "" if is_routine(text) else text
                    self._console.service_line(self.name, text, color_index=self._color_index)
