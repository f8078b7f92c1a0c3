"""Whether the home folder can be used: a folder at all, room to write. Owns the check and its wording."""

import errno
import os
import shutil
from pathlib import Path

from launcher.console import format_bytes
from launcher.errors import EXIT_REFUSED, LauncherError

RESERVE_BYTES = 64_000_000
_SAMPLE_BYTES = 65_536


def find_home_problem(home: Path) -> str | None:
    """Why home cannot be a folder, None when it is one or can become one."""
    existing = next(path for path in (home, *home.parents) if os.path.lexists(path))
    if existing.is_dir():
        return None
    return f"SOLOIST_HOME is {home}, but {existing} is not a folder"


def check_home(home: Path) -> None:
    """Raises: LauncherError that names SOLOIST_HOME when it is a file or below one."""
    problem = find_home_problem(home)
    if problem is not None:
        raise LauncherError(f"{problem}: set SOLOIST_HOME to another folder", exit_code=EXIT_REFUSED)


def check_room(home: Path, *, reserve_bytes: int = RESERVE_BYTES) -> None:
    """Have room for state, logs and the queue's file. Effects: makes the home, writes a small file and removes it.

    Raises: LauncherError that names SOLOIST_HOME when the disk is full or nothing can be written.
    """
    sample = home / f"room.{os.getpid()}.partial"
    try:
        home.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(home).free
        if free_bytes < reserve_bytes:
            raise LauncherError(
                f"{home} has {format_bytes(free_bytes)} free, {format_bytes(reserve_bytes)} needed: make room or move "
                "SOLOIST_HOME"
            )
        try:
            with sample.open("wb") as written:
                written.write(b"\0" * _SAMPLE_BYTES)
                written.flush()
                os.fsync(written.fileno())
        finally:
            sample.unlink(missing_ok=True)
    except OSError as error:
        advice = "make room or move SOLOIST_HOME" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "set SOLOIST_HOME"
        raise LauncherError(f"cannot write to {home}: {error.strerror or error}; {advice}") from error
