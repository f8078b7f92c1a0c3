"""Signals that end a command line tool unwind it as Ctrl-C does, so that its clean-up runs. Owns the handler only."""

import signal
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def unwind_on_signals() -> None:
    """Raise KeyboardInterrupt in the main thread at the first of SIGINT, SIGTERM and SIGHUP, and ignore the rest.

    Effects: replaces the process's handlers of these signals.
    """
    for number in _ENDING:
        signal.signal(number, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Unwind once; a second signal must not stop the clean-up of the first."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
