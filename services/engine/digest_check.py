"""Digests of a model folder, read beside the load. Owns the thread and the limit; `model_home` says what differs.

A flipped byte of a weight is a wrong answer nobody sees, so small files are always read. Larger ones would hold up
the start for minutes; for them it is `fetch --verify`.
"""

import threading

from contracts.errors import SetupError
from engine.model_home import ModelFolder

MAX_FILE_BYTES = 1 << 30


class DigestCheck:
    """Hashing begins with the object; SHA-256 lets go of the interpreter lock, so loading goes on beside it."""

    def __init__(self, folder: ModelFolder, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._error: SetupError | None = None
        self._thread = threading.Thread(target=self._run, name="engine-digests", daemon=True)
        self._thread.start()

    def require_equal(self) -> None:
        """Wait for the end of it.

        Raises: SetupError naming the first file that differs from the manifest or cannot be read.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._folder.verify_digests(self._max_file_bytes)
        except SetupError as error:
            self._error = error
        except OSError as error:
            self._error = SetupError(f"{error.filename or self._folder.path} cannot be read: {error.strerror or error}")
