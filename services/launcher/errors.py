"""The launcher's one error: a line for the person at the keyboard and an exit code. Decides nothing.

contracts.errors needs installed packages, which the launcher must do without.
"""

import errno

EXIT_FAILED = 1
EXIT_REFUSED = 2


class LauncherError(Exception):
    """A verb cannot go on; message is one line that says what is wrong and what to do, exit_code 2 means refused."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def as_launcher_error(error: OSError) -> LauncherError:
    """A fault of the operating system as a line: what, where, and what to do when the disk is full."""
    where = f"{error.filename}: " if error.filename else ""
    advice = "; make room, or move SOLOIST_HOME or SOLOIST_VENV" if error.errno == errno.ENOSPC else ""
    return LauncherError(f"{where}{error.strerror or error}{advice}")
