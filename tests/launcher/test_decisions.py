"""What the launcher decides without running anything: restarts, stalls, tiers, addresses, reports, findings."""

import errno
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.console import Console, PipeReporter, format_bytes, format_duration
from launcher.doctor import Check, show
from launcher.errors import LauncherError
from launcher.health import Probe, hide_password
from launcher.home_check import check_room
from launcher.ports import find_port_problem, local_host
from launcher.programs import find_embedded_valkey, find_redis_server
from launcher.quality import Step, Tiers, list_steps, run_steps
from launcher.restart import FIRST_DELAY_S, MAX_RESTARTS, WINDOW_S, RestartPolicy
from launcher.settings import load_settings
from launcher.stack import StackOptions, StartProgress
from launcher.stack_plan import redis_command
from support.launcher_stack import ROOT, FakeStack


def test_restarts_back_off_and_give_up_in_a_crash_loop() -> None:
    policy = RestartPolicy()
    delays_s = [policy.next_delay_s(float(now_s)) for now_s in range(MAX_RESTARTS + 1)]
    assert delays_s == [*(FIRST_DELAY_S * 2**i for i in range(MAX_RESTARTS)), None]


def test_restarts_forget_old_deaths() -> None:
    policy = RestartPolicy()
    for attempt in range(3 * MAX_RESTARTS):
        assert policy.next_delay_s(attempt * WINDOW_S) == FIRST_DELAY_S


def test_a_start_may_be_slow_but_not_stuck() -> None:
    progress = StartProgress(StackOptions(stall_s=10.0, silent_s=3.0), started_s=0.0)
    for second in range(60):
        progress.note("engine", Probe(False, progress=second / 60), float(second))
        progress.note("gateway", Probe(False, message="waits for the engine"), float(second))
        progress.raise_stalled(float(second))
    assert progress.describe(60.0) == "engine 98%, gateway (waits for the engine) · 1:00"
    with pytest.raises(LauncherError, match=r"does not move for 10 s; waiting for engine 98%, gateway"):
        progress.raise_stalled(70.0)


def test_a_silent_start_is_given_up_earlier() -> None:
    progress = StartProgress(StackOptions(stall_s=10.0, silent_s=3.0), started_s=0.0)
    progress.note("engine", Probe(True), 5.0)
    progress.note("gateway", Probe(False, message="no Redis"), 5.0)
    progress.raise_stalled(7.9)
    with pytest.raises(LauncherError, match=r"waiting for gateway \(no Redis\)"):
        progress.raise_stalled(8.1)


@pytest.mark.parametrize(
    ("tiers", "expression"),
    [
        (Tiers(), "not full and not release and not gpu"),
        (Tiers(full=True), "not release and not gpu"),
        (Tiers(release=True), "not full and not gpu"),
        (Tiers(full=True, release=True), "not gpu"),
    ],
)
def test_tiers(tiers: Tiers, expression: str) -> None:
    assert tiers.expression() == expression


def test_every_step_runs_and_pytest_is_last() -> None:
    steps = list_steps(load_settings(ROOT, {}), Tiers(), ["-k", "x"])
    assert [step.name for step in steps] == ["ruff check", "ruff format", "mypy", "lint-imports", "pytest"]
    assert all(Path(step.command[0]).parent == ROOT / ".venv" / "bin" for step in steps)
    assert steps[-1].command[-4:] == ("-m", "not full and not release and not gpu", "-k", "x")


@pytest.mark.parametrize(("exit_codes", "exit_code", "last"), [((0, 0), 0, "── b"), ((3, 0), 1, "failed: a")])
def test_a_failed_step_does_not_stop_the_rest(
    tmp_path: Path, exit_codes: tuple[int, int], exit_code: int, last: str
) -> None:
    steps = [
        Step(name, ("/bin/sh", "-c", f"touch {name}; exit {code}")) for name, code in zip("ab", exit_codes, strict=True)
    ]
    out = io.StringIO()
    settings = load_settings(tmp_path, {"PATH": os.defpath})
    assert run_steps(steps, settings, Console(out, is_terminal=False, color=False)) == exit_code
    assert (tmp_path / "a").exists() and (tmp_path / "b").exists()
    assert out.getvalue().splitlines()[-1] == last


def test_terminal_status_is_one_line_below_the_log() -> None:
    out = io.StringIO()
    console = Console(out, is_terminal=True, color=False)
    console.status("starting:", "engine 10%")
    console.service_line("engine", "hello", color_index=0)
    console.clear_status()
    assert out.getvalue() == "\r\x1b[Kstarting: engine 10%\r\x1b[Kengine  | hello\nstarting: engine 10%\r\x1b[K"


def test_plain_status_is_a_line_per_phase() -> None:
    now_s = 0.0
    out = io.StringIO()
    console = Console(out, is_terminal=False, color=True, clock=lambda: now_s)
    for second in range(25):
        now_s = float(second)
        console.status("starting:", f"{second}")
    console.service_line("redis", "up", color_index=1)
    assert out.getvalue().splitlines() == ["starting: 0", "starting: 10", "starting: 20", "redis   | up"]


def test_a_lost_reader_is_remembered_not_raised() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "w", closefd=False) as stream:
        console = Console(stream, is_terminal=False, color=False)
        console.line("x")
        assert console.lost_output
        os.dup2(os.open(os.devnull, os.O_WRONLY), write_fd)  # what the stream still holds goes nowhere
    os.close(write_fd)


def test_a_parent_that_went_away_does_not_stop_the_child() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    out = io.StringIO()
    reporter = PipeReporter(write_fd, Console(out, is_terminal=False, color=False))
    reporter.line("a")
    reporter.status("b")
    reporter.finish(exit_code=0, message="")
    assert out.getvalue() == "a\nb\n"


@pytest.mark.parametrize(
    ("duration_s", "text"), [(0.44, "0.4 s"), (12.9, "12 s"), (65, "1:05"), (3_725, "1:02:05"), (90_000, "25:00:00")]
)
def test_durations(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


def test_sizes() -> None:
    assert [format_bytes(n) for n in (999_999_999, 2_500_000_000)] == ["1000 MB", "2.5 GB"]


def test_hosts_and_secrets() -> None:
    assert [local_host(host) for host in ("0.0.0.0", "::", "::1", "10.0.0.1")] == [
        "127.0.0.1", "127.0.0.1", "[::1]", "10.0.0.1",
    ]  # fmt: skip
    assert hide_password("redis://user:secret@host:6379/2") == "redis://host:6379/2"


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert find_port_problem("127.0.0.1", port) == f"port {port} on 127.0.0.1 is in use by another program"
    assert find_port_problem("127.0.0.1", port) is None
    problem = find_port_problem("203.0.113.7", 8000)
    assert problem is not None and "cannot listen on port 8000 of 203.0.113.7" in problem


def test_redis_on_the_path_comes_first(tmp_path: Path) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\n", encoding="ascii")
    server.chmod(0o755)
    assert find_redis_server(load_settings(ROOT, {"PATH": str(tmp_path)})) == str(server)


def test_the_embedded_valkey_runs_with_our_settings(tmp_path: Path) -> None:
    """The package keeps its server where programs.py looks, and that server takes every option we give it."""
    server = find_embedded_valkey(Path(sys.prefix))
    assert server is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(redis_command((server,), port, tmp_path), stdout=subprocess.DEVNULL)
    try:
        client = _connect(port)
        client.sendall(b"CONFIG GET maxmemory-policy\r\nCONFIG GET appendonly\r\nCONFIG GET bind\r\n")
        answer = b""
        while answer.count(b"\r\n") < 15:
            answer += client.recv(4096)
        client.close()
        assert [line for line in answer.split(b"\r\n") if line.isalnum() or b"." in line] == [
            b"noeviction", b"appendonly", b"yes", b"bind", b"127.0.0.1",
        ]  # fmt: skip
    finally:
        process.terminate()
        assert process.wait(5) == 0


def _connect(port: int) -> socket.socket:
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=2)
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise AssertionError("valkey does not listen")


def test_doctor_fails_on_problems_only() -> None:
    out = io.StringIO()
    console = Console(out, is_terminal=False, color=False)
    assert show([Check("a", "ok", "x"), Check("b", "note", "y")], console, as_json=False) == 0
    assert show([Check("c", "problem", "z", "do this")], console, as_json=False) == 1
    assert "fix: do this" in out.getvalue()


def test_doctor_end_to_end(stack: FakeStack) -> None:
    stack.behave(GATEWAY_PORT="0")
    done = stack.run("doctor", "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    levels = {check["name"]: check["level"] for check in report["checks"]}
    assert report["can_start"] and levels["packages"] == "ok"
    assert levels["model"] == "note", "the fake lists the model as absent"
    assert {"python", "home", "environment", "memory", "processor", "gpu", "docker", "port", "redis"} <= set(levels)


def test_doctor_names_a_port_in_use(stack: FakeStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stack.behave(GATEWAY_PORT=str(listener.getsockname()[1]))
        done = stack.run("doctor")
    assert done.returncode == 1
    assert "is in use by another program" in done.stdout and "fix: start with --port N" in done.stdout


def test_a_full_disk_is_named_before_anything_starts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    check_room(home, reserve_bytes=1)
    assert list(home.iterdir()) == []
    with pytest.raises(LauncherError, match=r"home has .* free, 1000000000\.0 GB needed: make room or move"):
        check_room(home, reserve_bytes=10**18)


def test_a_home_that_takes_no_bytes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LauncherError, match=r"cannot write to .*: No space left on device; make room or move SOLOIST_"):
        check_room(tmp_path, reserve_bytes=1)
    assert list(tmp_path.iterdir()) == []
