"""Processes by pid: who they are, whether they still live, how to end them. Owns no child and no policy.

A pid alone is recycled by the system, so a process is named by pid plus start time; nothing else is ever signalled.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")
_POLL_S = 0.05
INTERRUPT_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process that can be recognised later; identity is the start time in the system's own words."""

    pid: int
    identity: str


def identify(pid: int) -> ProcessName | None:
    """The process now running under pid; None when there is none, or only an ended one nobody has waited for."""
    if pid <= 0:
        return None
    identity = _linux_identity(pid) if sys.platform.startswith("linux") else _ps_identity(pid)
    return ProcessName(pid, identity) if identity is not None else None


def is_alive(process: ProcessName) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessName, number: int) -> bool:
    """Signal exactly this process; False when it is gone.

    Raises: PermissionError when it belongs to somebody else.
    """
    if not is_alive(process):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
        return True
    return False


def end_process(process: ProcessName, *, grace_s: float) -> None:
    """SIGTERM, wait up to grace_s, SIGKILL, wait again; returns when it is gone."""
    if send_signal(process, signal.SIGTERM) and not wait_gone(process, timeout_s=grace_s):
        send_signal(process, signal.SIGKILL)
        wait_gone(process, timeout_s=5.0)


def wait_gone(process: ProcessName, *, timeout_s: float) -> bool:
    """Whether the process ended within timeout_s."""
    deadline_s = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def spawn_leashed(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    stdout: int | IO[bytes] | None = None,
    own_group: bool = True,
) -> "subprocess.Popen[bytes]":
    """Start a program that dies with this process; stderr joins stdout when that is given.

    Effects: must be called from the main thread, because the kernel ties the child to the thread that started it.
    own_group keeps the terminal's Ctrl-C away from it.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        env=dict(environ),
        cwd=cwd,
        process_group=0 if own_group else None,
    )


def run_leashed(command: Sequence[str], *, environ: Mapping[str, str], cwd: Path) -> int:
    """Run a program to its end on this terminal and return its exit code, or minus the signal.

    Ctrl-C reaches it too; it gets INTERRUPT_GRACE_S to tidy up before it is killed, then the interrupt goes on.
    """
    process = spawn_leashed(command, environ=environ, cwd=cwd, own_group=False)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERRUPT_GRACE_S)
        process.kill()
        process.wait()
        raise


def kill_group(leader: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to a child that has not been waited for yet and to everything in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)


def has_ended(child: "subprocess.Popen[bytes]") -> bool:
    """Whether a child ended. Effects: what it left in its process group is killed, then it is reaped.

    The group is killed before the child is reaped: until then its number cannot belong to anybody else.
    """
    if child.returncode is not None:
        return True
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return child.poll() is not None
    if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return False
    kill_group(child)
    child.wait()
    return True


def describe_exit(returncode: int) -> str:
    """A child's end in words: exit code 2, signal SIGKILL."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def _linux_identity(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold spaces; state is field 3
    if fields[0] in ("Z", "X"):
        return None
    return f"{boot}:{fields[19]}"  # field 22: start time in ticks since boot


def _ps_identity(pid: int) -> str | None:
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None
