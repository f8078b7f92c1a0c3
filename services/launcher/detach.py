"""The verb `up --detach`: the foreground form once more, in a session of its own, with its log in a file.

Owns the hand-over: the background process tells its parent through a pipe how the start goes, the parent shows that and
returns when the stack is ready or has failed. What the person must see or may stop (fetching) happens before.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from launcher.console import Console
from launcher.errors import LauncherError
from launcher.home_check import check_room
from launcher.process import describe_exit
from launcher.programs import Programs
from launcher.settings import LauncherSettings
from launcher.stack_plan import UpOptions, choose_model, make_plan
from launcher.state import LOG_NAME, describe_owner, is_locked
from launcher.up import fetch_model

_LOG_BYTES_MAX = 20_000_000
_ABANDON_S = 30.0  # it is still starting: nothing is there to drain


def run_detached(options: UpOptions, settings: LauncherSettings, programs: Programs, console: Console) -> int:
    """Start the stack in the background and return when it is ready.

    Raises: LauncherError with the reason when it does not become ready; then nothing is left running.
    """
    if is_locked(settings.run_folder):
        raise LauncherError(describe_owner(settings.run_folder))
    make_plan(options, settings, programs)  # refuse here, where the person is, what the background would refuse
    exit_code = fetch_model(choose_model(options, settings.inherited), settings, programs)
    if exit_code != 0:
        return exit_code
    check_room(settings.home)
    log_path = _prepare_log(settings.run_folder)
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as reports, log_path.open("ab") as log:
        try:
            process = subprocess.Popen(
                [*programs.launcher, "up", *_flags(options), "--report-fd", str(write_fd)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=settings.root,
                env=dict(settings.inherited), start_new_session=True, pass_fds=(write_fd,),
            )  # fmt: skip
        finally:
            os.close(write_fd)
        try:
            return _follow(reports, process, console, log_path)
        except BaseException:
            _abandon(process)
            raise
        finally:
            console.clear_status()


def _prepare_log(run_folder: Path) -> Path:
    run_folder.mkdir(parents=True, exist_ok=True)
    log_path = run_folder / LOG_NAME
    if log_path.exists() and log_path.stat().st_size > _LOG_BYTES_MAX:
        log_path.replace(run_folder / f"{LOG_NAME}.old")
    return log_path


def _abandon(process: "subprocess.Popen[bytes]") -> None:
    """Stop a background process that nobody waits for any more; its children die with it."""
    process.terminate()
    try:
        process.wait(_ABANDON_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _flags(options: UpOptions) -> Sequence[str]:
    flags = []
    if options.model is not None:
        flags += ["--model", options.model]
    if options.port is not None:
        flags += ["--port", str(options.port)]
    if options.restarts:
        flags.append("--restart")
    return flags


def _follow(reports: IO[bytes], process: "subprocess.Popen[bytes]", console: Console, log_path: Path) -> int:
    for raw in reports:
        report = json.loads(raw)
        if "line" in report:
            console.line(report["line"])
        elif "phase" in report:
            console.status(report["phase"], report["detail"])
        elif report["exit_code"] == 0:
            return 0
        else:
            process.wait()
            raise LauncherError(report["message"], exit_code=report["exit_code"])
    returncode = process.wait()
    raise LauncherError(f"the background process ended with {describe_exit(returncode)}; its log is {log_path}")
