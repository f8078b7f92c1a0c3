"""The verb `up` in the foreground: one home, one stack. Owns the order lock → model → state → children → announcement.

Does not know how children live (stack), which ports they get (stack_plan) or how to go to the background (detach).
"""

import json
import os
import threading
import time
from functools import partial
from pathlib import Path

from launcher.child import Child, ChildSpec
from launcher.console import Console, PipeReporter, Reporter, format_duration
from launcher.errors import LauncherError, as_launcher_error
from launcher.health import hide_password, probe_http, probe_redis, probe_redis_url
from launcher.home_check import check_room
from launcher.ports import LOOPBACK, local_host
from launcher.process import describe_exit, end_process, identify, run_leashed
from launcher.programs import Programs
from launcher.settings import LauncherSettings, child_environment
from launcher.stack import Stack, StackOptions
from launcher.stack_plan import StackPlan, UpOptions, make_plan, redis_command
from launcher.state import LOG_NAME, ChildRecord, StackRecord, hold_lock, read_state, remove_state, write_state

ENGINE_GRACE_S = 20.0
REDIS_GRACE_S = 5.0
_LEFTOVER_GRACE_S = 2.0
_REDIS_NOISE = "# WARNING Memory overcommit must be enabled!"  # it forks to rewrite 256 MB at most


def fetch_model(model: str, settings: LauncherSettings, programs: Programs) -> int:
    """Have the model in the home, downloading it when missing; the fetcher shows its own progress.

    Returns: its exit code; it has said why when that is not 0.
    """
    returncode = run_leashed((*programs.fetch, model), environ=child_environment(settings), cwd=settings.root)
    if returncode < 0:
        raise LauncherError(f"fetching {model} ended with {describe_exit(returncode)}")
    return returncode


def run_foreground(
    options: UpOptions,
    settings: LauncherSettings,
    programs: Programs,
    console: Console,
    *,
    report_fd: int | None = None,
) -> int:
    """Run the stack until it is stopped; report_fd is the pipe of a waiting parent, which has fetched the model.

    Raises: LauncherError with the reason when it cannot start or a child died.
    """
    piped = PipeReporter(report_fd, console) if report_fd is not None else None
    reporter: Reporter = piped or console
    try:
        with hold_lock(settings.run_folder):
            end_leftovers(settings.run_folder, reporter)
            plan = make_plan(options, settings, programs)
            if piped is None and (exit_code := fetch_model(plan.model, settings, programs)) != 0:
                return exit_code
            check_room(settings.home)
            return _run_stack(options, plan, settings, programs, console=console, piped=piped)
    except (LauncherError, OSError) as error:
        reason = as_launcher_error(error) if isinstance(error, OSError) else error
        if piped is not None:
            piped.finish(exit_code=reason.exit_code, message=reason.message)
        raise
    finally:
        console.clear_status()


def end_leftovers(run_folder: Path, reporter: Reporter) -> None:
    """End what a launcher that was killed left behind. Effects: the caller holds the lock; forgets the old stack."""
    record = read_state(run_folder)
    if record is None:
        return
    for child in reversed(record.children):
        if identify(child.process.pid) == child.process:
            reporter.line(f"ending {child.name} (pid {child.process.pid}), left behind by an earlier run")
            end_process(child.process, grace_s=_LEFTOVER_GRACE_S)
    remove_state(run_folder)


def announcement(plan: StackPlan, took_s: float, *, is_detached: bool, log_path: Path) -> list[str]:
    """What a person needs next: address, a first request, how to stop."""
    url = f"http://{local_host(plan.host)}:{plan.port}"
    body = json.dumps(
        {"model": plan.model, "stream": True, "messages": [{"role": "user", "content": "Say hello."}]},
        separators=(",", ":"),
    )
    lines = [
        f"Soloist is ready after {format_duration(took_s)}: {url} (model {plan.model})",
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f'  openai SDK: OpenAI(base_url="{url}/v1", api_key="none")',
    ]
    if is_detached:
        return [*lines, f"  log: {log_path}", "  stop: ./soloist down"]
    return [*lines, "  stop: Ctrl-C"]


def _run_stack(
    options: UpOptions, plan: StackPlan, settings: LauncherSettings, programs: Programs, *,
    console: Console, piped: PipeReporter | None,
) -> int:  # fmt: skip
    children = [
        Child(spec, console, color_index=index) for index, spec in enumerate(_child_specs(plan, settings, programs))
    ]
    launcher = identify(os.getpid())
    assert launcher is not None
    started_at_s = time.time()
    stop_s = sum(child.spec.grace_s for child in children)
    reporter: Reporter = piped or console
    was_announced = threading.Event()

    def record(phase: str) -> None:
        running = ((child, child.process_name()) for child in children)
        records = tuple(ChildRecord(child.name, name, child.spec.port) for child, name in running if name is not None)
        stack = StackRecord(
            launcher, phase, plan.model, plan.host, plan.port, started_at_s, piped is not None, stop_s, records
        )  # fmt: skip
        write_state(settings.run_folder, stack)

    def record_later(phase: str) -> None:
        try:
            record(phase)
        except OSError as error:
            text = f"cannot write the state file in {settings.run_folder}: {as_launcher_error(error).message}"
            if phase != "stopping" and not was_announced.is_set():
                raise LauncherError(text) from error
            reporter.line(text)  # a full disk must not keep a running stack from stopping

    def announce(took_s: float) -> None:
        was_announced.set()
        console.clear_status()
        log_path = settings.run_folder / LOG_NAME
        for line in announcement(plan, took_s, is_detached=piped is not None, log_path=log_path):
            reporter.line(line)
        if piped is not None:
            piped.finish(exit_code=0, message="")

    record("starting")
    stack_options = StackOptions(restarts=options.restarts)
    try:
        return Stack(children, reporter, stack_options, on_change=record_later, on_ready=announce).run()
    finally:
        remove_state(settings.run_folder)


def _child_specs(plan: StackPlan, settings: LauncherSettings, programs: Programs) -> list[ChildSpec]:
    specs = []
    if plan.redis_port is None:
        probe = probe_redis_url(plan.redis_url)
        if not probe.is_ready:
            raise LauncherError(f"Redis at {hide_password(plan.redis_url)} does not answer: {probe.message}")
    else:
        assert programs.redis is not None
        folder = settings.home / "redis"
        folder.mkdir(parents=True, exist_ok=True)
        command = redis_command(programs.redis, plan.redis_port, folder)
        ping = partial(probe_redis, LOOPBACK, plan.redis_port)
        plain = child_environment(settings)
        specs.append(
            ChildSpec("redis", command, plain, settings.root, plan.redis_port, ping, REDIS_GRACE_S, _REDIS_NOISE)
        )
    services = (
        ("engine", programs.engine, plan.engine_environ, plan.engine_host, plan.engine_port, ENGINE_GRACE_S),
        ("gateway", programs.gateway, plan.gateway_environ, plan.host, plan.port, plan.gateway_grace_s),
    )
    for name, command, environ, host, port, grace_s in services:
        probe_service = partial(probe_http, local_host(host), port)
        specs.append(ChildSpec(name, command, environ, settings.root, port, probe_service, grace_s))
    return specs
