"""The state file and the lock of the stack that runs on one home. Owns both files, starts and ends no process.

    <SOLOIST_HOME>/run/stack.json   who runs: pids with start times, ports, model; written whole, then renamed
    <SOLOIST_HOME>/run/up.lock      held by the running launcher, so the kernel releases it at its death

The lock says whether something runs; the file says what.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError
from launcher.ports import local_host
from launcher.process import ProcessName

STATE_NAME = "stack.json"
LOCK_NAME = "up.lock"
LOG_NAME = "stack.log"
_LOCK_TRIES = 4
_LOCK_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """One child as the file names it."""

    name: str
    process: ProcessName
    port: int


@dataclass(frozen=True, slots=True)
class StackRecord:
    """The running stack; started_at_s is seconds since the epoch, phase is starting, ready or stopping.

    stop_s is the longest that a stop may take before it is forced.
    """

    launcher: ProcessName
    phase: str
    model: str
    host: str
    port: int
    started_at_s: float
    detached: bool
    stop_s: float
    children: tuple[ChildRecord, ...]

    @property
    def url(self) -> str:
        """Where the gateway answers, for a client on this machine."""
        return f"http://{local_host(self.host)}:{self.port}"


def write_state(run_folder: Path, record: StackRecord) -> None:
    """Replace the state file in one step."""
    target = run_folder / STATE_NAME
    partial = run_folder / f"{STATE_NAME}.{os.getpid()}.partial"
    try:
        partial.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n", encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_state(run_folder: Path) -> StackRecord | None:
    """The recorded stack, None when there is none.

    Raises: LauncherError when the file is not ours to read.
    """
    path = run_folder / STATE_NAME
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        children = tuple(
            ChildRecord(child["name"], ProcessName(**child["process"]), child["port"])
            for child in fields.pop("children")
        )
        return StackRecord(launcher=ProcessName(**fields.pop("launcher")), children=children, **fields)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise LauncherError(f"{path} is damaged ({error}): stop its processes by hand and delete it") from error


def remove_state(run_folder: Path) -> None:
    """Forget the stack."""
    (run_folder / STATE_NAME).unlink(missing_ok=True)


def is_locked(run_folder: Path) -> bool:
    """Whether a launcher holds this home."""
    try:
        lock_fd = os.open(run_folder / LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock_fd)
    return False


@contextlib.contextmanager
def hold_lock(run_folder: Path) -> Iterator[None]:
    """Own this home's stack for the length of the block.

    Raises: LauncherError when another launcher owns it.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    lock_fd = os.open(run_folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(lock_fd):
            raise LauncherError(describe_owner(run_folder))
        yield
    finally:
        os.close(lock_fd)


def _try_lock(lock_fd: int) -> bool:
    for _ in range(_LOCK_TRIES):  # is_locked() of another command holds it for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_RETRY_S)
    return False


def describe_owner(run_folder: Path) -> str:
    """The line for a second `up` on one home."""
    record = read_state(run_folder)
    if record is None:
        return f"another ./soloist up is starting on {run_folder.parent}; wait for it, or choose another SOLOIST_HOME"
    return (
        f"Soloist already runs on {run_folder.parent} (pid {record.launcher.pid}, {record.phase}, {record.url}); "
        "`./soloist status` shows it, `./soloist down` stops it"
    )
