"""The launcher's one error: a line for the person at the keyboard and an exit code. Owns no wording.

contracts.errors needs installed packages, which the launcher must do without.
"""

EXIT_FAILED = 1
EXIT_REFUSED = 2


class LauncherError(Exception):
    """A verb cannot go on; message is one line that says what is wrong and what to do, exit_code 2 means refused."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
