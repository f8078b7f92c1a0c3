"""Runs pip with one updating line instead of hundreds, and turns its failures into one sentence. Owns no environment.

Receives a command line, hands on nothing but success or a LauncherError. pip's whole output goes to a log file.
"""

import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from launcher.console import Reporter, format_duration
from launcher.errors import LauncherError
from launcher.process import kill_group, spawn_leashed

_TICK_S = 0.5
_STOP_GRACE_S = 5.0
_TAIL_LINES = 40
_NO_NETWORK = re.compile(
    r"Failed to establish a new connection|NewConnectionError|NameResolutionError|Temporary failure in name resolution"
    r"|ProxyError|ConnectTimeoutError|ReadTimeoutError|Connection refused|Network is unreachable|SSLError"
    r"|Max retries exceeded"
)
_CUDA_PACKAGE = re.compile(r"Collecting nvidia[-_](?!ml[-_]py)", re.IGNORECASE)
CPU_BUILD_NOTE = (
    "note: pip chose the CUDA build of torch (several GB). Without an NVIDIA GPU a CPU build is enough: stop, name its "
    "place in pip's own configuration (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS), start again"
)


@dataclass(frozen=True, slots=True)
class PipJob:
    """One run: what to call it, its command and variables, where its output goes, how many packages are in place."""

    label: str
    command: Sequence[str]
    variables: Mapping[str, str]
    cwd: Path
    log_path: Path
    count_installed: Callable[[], int]


class PipProgress:
    """What pip's lines say so far. Receives lines, gives one status text."""

    def __init__(self) -> None:
        self.num_collected = 0
        self.num_to_install: int | None = None
        self.wants_cuda = False
        self._doing = ""
        self._tail: list[str] = []

    def note(self, line: str) -> None:
        """Take one line of pip's output into account."""
        text = line.strip()
        if text:
            self._tail = [*self._tail[-_TAIL_LINES + 1 :], text]
        word, _, rest = text.partition(" ")
        if word in ("Collecting", "Processing"):
            self.num_collected += 1
            self._doing = Path(rest.split(" (from")[0]).name
            self.wants_cuda = self.wants_cuda or bool(_CUDA_PACKAGE.match(text))
        elif word == "Downloading":
            self._doing = f"downloading {_short_file(rest)}"
        elif text.startswith("Installing collected packages:"):
            self.num_to_install = len(text.partition(":")[2].split(","))

    def describe(self, num_installed: int) -> str:
        """Packages done and what is going on; num_installed counts those put in place by this run."""
        if self.num_to_install is not None:
            return f"{min(num_installed, self.num_to_install)}/{self.num_to_install} packages in place · "
        return f"{self.num_collected} packages found · {self._doing} · " if self._doing else ""

    def explain_failure(self) -> str:
        """One line on why pip failed."""
        text = "\n".join(self._tail)
        if "No space left on device" in text:
            return "the disk is full"
        if _NO_NETWORK.search(text):
            return "the package index cannot be reached: check the network, the proxy and pip's own configuration"
        errors = [line for line in self._tail if line.startswith("ERROR:")]
        return errors[-1].removeprefix("ERROR:").strip() if errors else (self._tail or ["no output"])[-1]


def run_pip(job: PipJob, reporter: Reporter) -> None:
    """Run pip to its end, showing packages and elapsed time.

    Raises: LauncherError with the cause and the log's path. Effects: on an interrupt pip is stopped first.
    """
    progress = PipProgress()
    started_s = time.monotonic()
    num_before = job.count_installed()
    job.log_path.parent.mkdir(parents=True, exist_ok=True)
    process = spawn_leashed(job.command, environ=job.variables, cwd=job.cwd, stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        with job.log_path.open("w", encoding="utf-8") as log:
            has_warned = False
            while not _drain(lines, progress, log):
                if progress.wants_cuda and not has_warned and not Path("/proc/driver/nvidia").exists():
                    reporter.line(CPU_BUILD_NOTE)
                    has_warned = True
                done = progress.describe(job.count_installed() - num_before)
                reporter.status(f"{job.label}:", done + format_duration(time.monotonic() - started_s))
        returncode = process.wait()
    except BaseException:
        _stop(process)
        raise
    if returncode != 0:
        raise LauncherError(f"{job.label} failed: {progress.explain_failure()} (log: {job.log_path})")


def _read_lines(pipe: IO[bytes], lines: "queue.SimpleQueue[str | None]") -> None:
    with pipe:
        for raw in pipe:
            lines.put(raw.decode("utf-8", "replace"))
    lines.put(None)


def _drain(lines: "queue.SimpleQueue[str | None]", progress: PipProgress, log: TextIO) -> bool:
    """Take what pip said within one tick; True at the end of its output."""
    deadline_s = time.monotonic() + _TICK_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left_s)
        except queue.Empty:
            return False
        if line is None:
            return True
        log.write(line)
        progress.note(line)
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        kill_group(process)
        process.wait()


def _short_file(text: str) -> str:
    """`https://host/long/torch-2.13.0-cp311.whl (530.1 MB)` as `torch-2.13.0 (530.1 MB)`."""
    address, _, num_bytes = text.partition(" ")
    return f"{'-'.join(address.rpartition('/')[2].split('-')[:2])} {num_bytes}".strip()
