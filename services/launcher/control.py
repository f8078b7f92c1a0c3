"""The verbs `down` and `status`: what runs on this home, asked from outside. Owns no child; signals launchers only."""

import dataclasses
import json
import signal
import time
from dataclasses import dataclass

from launcher.console import Console, format_duration
from launcher.errors import EXIT_FAILED, LauncherError
from launcher.health import probe_http
from launcher.ports import local_host
from launcher.process import is_alive, send_signal, wait_gone
from launcher.settings import LauncherSettings
from launcher.state import StackRecord, hold_lock, read_state
from launcher.up import end_leftovers

_STOP_MARGIN_S = 10.0
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """One child now."""

    name: str
    pid: int
    port: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class StackStatus:
    """What `status --json` prints; all but state and home are None when nothing runs."""

    state: str
    home: str
    url: str | None = None
    model: str | None = None
    pid: int | None = None
    port: int | None = None
    uptime_s: float | None = None
    is_detached: bool | None = None
    message: str | None = None
    children: tuple[ChildStatus, ...] = ()


def stop_stack(settings: LauncherSettings, console: Console) -> int:
    """The verb `down`: stop the stack of this home and wait until it is gone; nothing to stop is success.

    Raises: LauncherError when it cannot be stopped.
    """
    run_folder = settings.run_folder
    record = read_state(run_folder)
    if record is None:
        console.line(f"nothing runs on {settings.home}")
        return 0
    if is_alive(record.launcher):
        console.status("stopping", f"Soloist (pid {record.launcher.pid})")
        send_signal(record.launcher, signal.SIGTERM)
        if not wait_gone(record.launcher, timeout_s=record.stop_s + _STOP_MARGIN_S):
            send_signal(record.launcher, signal.SIGKILL)
            if not wait_gone(record.launcher, timeout_s=_KILL_WAIT_S):
                raise LauncherError(f"pid {record.launcher.pid} does not end, even by SIGKILL")
        console.clear_status()
    with hold_lock(run_folder):
        end_leftovers(run_folder, console)
    console.line(f"stopped Soloist on {settings.home}")
    return 0


def show_status(settings: LauncherSettings, console: Console, *, as_json: bool) -> int:
    """The verb `status`: exit code 0 when the stack is ready, 1 otherwise."""
    status = look(settings)
    if as_json:
        console.line(json.dumps(dataclasses.asdict(status)))
    else:
        for line in describe(status):
            console.line(line)
    return 0 if status.state == "ready" else EXIT_FAILED


def look(settings: LauncherSettings) -> StackStatus:
    """The stack of this home now; state is ready, starting, not ready, stopping or not running."""
    record = read_state(settings.run_folder)
    if record is None or not is_alive(record.launcher):
        return StackStatus(state="not running", home=str(settings.home))
    state, message = record.phase, None
    if record.phase == "ready":
        probe = probe_http(local_host(record.host), record.port)
        if not probe.is_ready:
            state, message = "not ready", probe.message or "the gateway does not answer"
    return StackStatus(
        state=state,
        home=str(settings.home),
        url=record.url,
        model=record.model,
        pid=record.launcher.pid,
        port=record.port,
        uptime_s=round(time.time() - record.started_at_s, 1),
        is_detached=record.detached,
        message=message,
        children=_children(record),
    )


def describe(status: StackStatus) -> list[str]:
    """The status for a person."""
    if status.state == "not running":
        return [f"not running (home {status.home}); start it with ./soloist up"]
    assert status.uptime_s is not None
    why = f": {status.message}" if status.message else ""
    where = "in the background" if status.is_detached else "in a terminal"
    lines = [
        f"{status.state}{why}",
        f"  {status.url}  model {status.model}  up {format_duration(status.uptime_s)}  {where}",
        f"  {'launcher':<9} pid {status.pid}",
    ]
    for child in status.children:
        dead = "" if child.is_alive else "  (not running)"
        lines.append(f"  {child.name:<9} pid {child.pid}  port {child.port}{dead}")
    return lines


def _children(record: StackRecord) -> tuple[ChildStatus, ...]:
    return tuple(ChildStatus(c.name, c.process.pid, c.port, is_alive(c.process)) for c in record.children)
