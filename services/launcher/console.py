"""Lines and one updating status line on a stream. Owns terminal control and locking, not the wording.

On a terminal the status line is rewritten in place; elsewhere a status becomes a plain line when its phase changes and
every PLAIN_INTERVAL_S after that. A reader that went away never stops the stack: what cannot be written is dropped.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

PLAIN_INTERVAL_S = 10.0
_CLEAR_LINE = "\r\x1b[K"
_RESET = "\x1b[0m"
_COLORS = ("\x1b[36m", "\x1b[32m", "\x1b[35m", "\x1b[33m", "\x1b[34m")


class Reporter(Protocol):
    """Where progress goes: a terminal, a log file, the pipe to a waiting parent."""

    def line(self, text: str) -> None:
        """One permanent line."""

    def status(self, phase: str, detail: str = "") -> None:
        """What is going on now; replaces the last status."""


class Console:
    """Writes to one stream from any thread."""

    def __init__(
        self, stream: TextIO, *, is_terminal: bool, color: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lost_output = False
        self._stream = stream
        self._is_terminal = is_terminal
        self._color = color and is_terminal
        self._clock = clock
        self._lock = threading.Lock()
        self._status = ""
        self._has_open_line = False
        self._plain_phase = ""
        self._plain_at_s = 0.0

    def line(self, text: str) -> None:
        """One permanent line; a status line in progress is redrawn below it."""
        with self._lock:
            if self._status:
                self._write(f"{_CLEAR_LINE}{text}\n{self._status}")
            else:
                self._write(text + "\n")

    def service_line(self, name: str, text: str, *, color_index: int) -> None:
        """One log line of a child, prefixed with its short name."""
        prefix = f"{name:<8}|"
        if self._color:
            prefix = f"{_COLORS[color_index % len(_COLORS)]}{prefix}{_RESET}"
        self.line(f"{prefix} {text}")

    def piece(self, text: str) -> None:
        """Part of a line, as it comes."""
        with self._lock:
            self._has_open_line = True
            self._write(text)

    def end_pieces(self) -> None:
        """End the line that pieces began, if any did."""
        with self._lock:
            if self._has_open_line:
                self._has_open_line = False
                self._write("\n")

    def status(self, phase: str, detail: str = "") -> None:
        """What is going on now; replaces the last status."""
        text = f"{phase} {detail}".rstrip()
        with self._lock:
            if self._is_terminal:
                self._status = text[: shutil.get_terminal_size().columns - 1]
                self._write(_CLEAR_LINE + self._status)
                return
            now_s = self._clock()
            if phase != self._plain_phase or now_s - self._plain_at_s >= PLAIN_INTERVAL_S:
                self._plain_phase, self._plain_at_s = phase, now_s
                self._write(text + "\n")

    def clear_status(self) -> None:
        """Remove the status line."""
        with self._lock:
            if self._status:
                self._status = ""
                self._write(_CLEAR_LINE)
            self._plain_phase = ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.lost_output = True  # the terminal, pipe or disk behind the stream is gone or full


class PipeReporter:
    """Tells a waiting parent process, one JSON object a line, and repeats everything on an inner reporter."""

    def __init__(self, pipe_fd: int, inner: Reporter) -> None:
        self._pipe_fd = pipe_fd
        self._inner = inner

    def line(self, text: str) -> None:
        """Repeat one line."""
        self._inner.line(text)
        self._send({"line": text})

    def status(self, phase: str, detail: str = "") -> None:
        """Repeat the status."""
        self._inner.status(phase, detail)
        self._send({"phase": phase, "detail": detail})

    def finish(self, *, exit_code: int, message: str) -> None:
        """Say how the start ended (exit_code 0 means ready) and let the parent go."""
        self._send({"exit_code": exit_code, "message": message})
        if self._pipe_fd >= 0:
            os.close(self._pipe_fd)
            self._pipe_fd = -1

    def _send(self, report: dict[str, str | int]) -> None:
        if self._pipe_fd < 0:
            return
        try:
            os.write(self._pipe_fd, json.dumps(report).encode() + b"\n")
        except BrokenPipeError:
            os.close(self._pipe_fd)
            self._pipe_fd = -1


def format_duration(duration_s: float) -> str:
    """Seconds as 0.4 s, 12 s, 1:05 or 2:03:04."""
    whole = int(duration_s)
    if whole < 10:
        return f"{duration_s:.1f} s"
    if whole < 60:
        return f"{whole} s"
    minutes, seconds = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def format_bytes(num_bytes: int) -> str:
    """Bytes as 12.3 GB or 45 MB (decimal units)."""
    if num_bytes >= 1_000_000_000:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.0f} MB"
