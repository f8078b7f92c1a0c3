"""How far a long step is, on stderr: one rewritten line on a terminal, else a line now and then. Owns the display."""

import time
from typing import TextIO

_TERMINAL_INTERVAL_S = 0.1
_LOG_INTERVAL_S = 5.0
_MEGABYTE = 1_000_000


class ProgressLine:
    """Shows steps with byte counts; every step begins with the first call that names it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._step = ""
        self._shown_s = 0.0
        self._width = 0

    def show(self, step: str, done_bytes: int, total_bytes: int) -> None:
        """Report bytes of a step; calls may be as frequent as they like."""
        now_s = time.monotonic()
        interval_s = _TERMINAL_INTERVAL_S if self._is_terminal else _LOG_INTERVAL_S
        if step == self._step and done_bytes < total_bytes and now_s - self._shown_s < interval_s:
            return
        self._shown_s = now_s
        done, total = min(done_bytes, total_bytes) / _MEGABYTE, total_bytes / _MEGABYTE
        self._write(step, f"{step}: {done:.1f} of {total:.1f} MB")

    def note(self, step: str) -> None:
        """Report a step that has no byte count."""
        self._write(step, step)

    def close(self) -> None:
        """End the line, so that what follows starts on its own."""
        if self._is_terminal and self._width:
            self._stream.write("\n")
            self._stream.flush()
        self._width = 0

    def _write(self, step: str, text: str) -> None:
        if not self._is_terminal:
            self._stream.write(text + "\n")
        else:
            if self._step and step != self._step:
                self.close()
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        self._step = step
        self._stream.flush()
