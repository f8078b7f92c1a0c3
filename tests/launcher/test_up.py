"""`up` with fake services in real processes: order, reasons, signals, no orphans, restart, background."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from launcher.process import identify
from support.launcher_stack import FakeStack, runs, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux only")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_up_starts_all_and_stops_in_order(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="load=0.6")
    launcher = stack.start_ready("--model", "tiny")
    assert "engine  | engine says hello with model tiny" in stack.output()
    assert "curl -N http://127.0.0.1:" in stack.output() and 'base_url="http://127.0.0.1:' in stack.output()
    assert "starting: " in stack.output()
    assert "redis   | redis says hello" in stack.output() and "overcommit" not in stack.output()
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(10) == 0
    ends = [event for event in stack.events() if event.endswith(("term", "stop"))]
    assert ends == ["gateway term", "gateway stop", "engine term", "engine stop", "redis term", "redis stop"]
    assert "fetch tiny" in stack.events()
    assert stack.run("status").returncode == 1
    stack.assert_nothing_runs()


def test_sigterm_stops_cleanly(stack: FakeStack) -> None:
    launcher = stack.start_ready()
    launcher.terminate()
    assert launcher.wait(10) == 0
    assert stack.events()[-1] == "redis stop"


@pytest.mark.parametrize("name", ["engine", "redis"])
def test_a_childs_death_stops_the_stack_with_its_reason(stack: FakeStack, name: str) -> None:
    stack.behave(**{f"FAKE_{name.upper()}": "die=1.0"})
    launcher = stack.start_ready()
    assert launcher.wait(10) == 1
    assert f"soloist: {name} ended with exit code 7: {name}: the last words" in stack.output()
    stack.assert_nothing_runs()


def test_a_killed_child_is_named_with_its_signal(stack: FakeStack) -> None:
    launcher = stack.start_ready()
    os.kill(stack.pids("engine")[0], signal.SIGKILL)
    assert launcher.wait(10) == 1
    assert stack.output().endswith("soloist: engine ended with signal SIGKILL\n"), "what it said before is no reason"


def test_an_engine_that_refuses_is_exit_code_2(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="refuse")
    done = stack.run("up", "--port", "0")
    assert done.returncode == 2
    assert "engine ended with exit code 2: does not fit: needs 2 bytes, has 1" in done.stderr
    stack.assert_nothing_runs()


def test_a_redis_that_cannot_write_ends_the_start_at_once(stack: FakeStack) -> None:
    stack.behave(FAKE_REDIS="full", FAKE_ENGINE="load=30")
    done = stack.run("up", "--port", "0")
    assert done.returncode == 1
    assert "soloist: redis cannot become ready: -MISCONF Errors writing to the AOF file: No space left" in done.stderr
    stack.assert_nothing_runs()


def test_a_state_file_that_cannot_be_written_ends_the_start(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="load=1.5")
    launcher = stack.start("up", "--port", "0")
    wait_until(lambda: "gateway start" in stack.events(), "children")
    shutil.rmtree(stack.home / "run")
    assert launcher.wait(10) == 1
    assert f"soloist: cannot write the state file in {stack.home / 'run'}: " in stack.output()
    assert "Soloist is ready" not in stack.output() and "Traceback" not in stack.output()
    stack.assert_nothing_runs()


def test_a_refused_model_ends_before_anything_starts(stack: FakeStack) -> None:
    stack.behave(FAKE_FETCH="refuse")
    done = stack.run("up", "--port", "0", "--model", "nonsense")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "unknown model nonsense"
    assert stack.all_pids() == []


def test_a_deaf_child_is_killed_and_hurry_is_possible(stack: FakeStack) -> None:
    stack.behave(FAKE_GATEWAY="deaf")
    launcher = stack.start_ready()
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: "gateway term" in stack.events(), "the stop to begin")
    time.sleep(0.3)
    assert launcher.poll() is None, "a drain gets its grace period"
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(10) == 0
    assert "gateway does not stop, killing it" in stack.output()
    assert "redis stop" in stack.events()
    stack.assert_nothing_runs()


def test_an_ignored_hangup_stays_ignored(stack: FakeStack) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        launcher = stack.start_ready()
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    launcher.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert launcher.poll() is None
    launcher.terminate()
    assert launcher.wait(10) == 0


def test_sigkill_of_the_launcher_leaves_no_orphan(stack: FakeStack) -> None:
    launcher = stack.start_ready()
    children = stack.all_pids()
    assert len(children) == 3 and all(map(runs, children))
    launcher.kill()
    launcher.wait()
    stack.assert_nothing_runs()
    assert stack.run("status").returncode == 1
    assert "ready" in stack.run("up", "--port", "0", "--detach").stdout, "the stale state does not block the next up"


def test_grandchildren_die_with_their_child(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="child,die=0.8")
    launcher = stack.start_ready()
    (grandchild,) = stack.pids("grandchild")
    assert runs(grandchild)
    launcher.wait(10)
    wait_until(lambda: not runs(grandchild), "the grandchild's end", timeout_s=2)


def test_a_port_in_use_is_one_line(stack: FakeStack, taken_port: int) -> None:
    done = stack.run("up", "--port", str(taken_port))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"soloist: port {taken_port} on 127.0.0.1 is in use by another program; choose another with --port"
    )
    assert stack.all_pids() == []


def test_a_second_soloist_on_the_port_is_recognised(stack: FakeStack, tmp_path_factory: pytest.TempPathFactory) -> None:
    stack.run("up", "--port", "0", "--detach")
    port = json.loads(stack.run("status", "--json").stdout)["port"]
    stack.environ["SOLOIST_HOME"] = str(tmp_path_factory.mktemp("other"))
    done = stack.run("up", "--port", str(port))
    stack.environ["SOLOIST_HOME"] = str(stack.home)
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use by another Soloist" in done.stderr


def test_a_second_up_on_one_home_is_refused(stack: FakeStack) -> None:
    launcher = stack.start_ready()
    for flags in ([], ["--detach"]):
        done = stack.run("up", "--port", "0", *flags)
        assert done.returncode == 1
        assert f"Soloist already runs on {stack.home} (pid {launcher.pid}, ready, http://127.0.0.1:" in done.stderr
    assert launcher.poll() is None


def test_detach_status_down(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="load=0.5")
    started = stack.run("up", "--port", "0", "--detach")
    assert started.returncode == 0, started.stderr
    assert "Soloist is ready" in started.stdout and "stop: ./soloist down" in started.stdout
    shown = stack.run("status", "--json")
    assert shown.returncode == 0
    status = json.loads(shown.stdout)
    assert status["state"] == "ready" and status["model"] == "smollm2-135m" and status["is_detached"]
    assert [child["name"] for child in status["children"]] == ["redis", "engine", "gateway"]
    assert all(runs(child["pid"]) for child in status["children"])
    assert os.getsid(status["pid"]) == status["pid"], "a session of its own"
    assert "pid" in stack.run("status").stdout
    assert "engine says hello" in (stack.home / "run" / "stack.log").read_text(encoding="utf-8")
    stopped = stack.run("down")
    assert stopped.returncode == 0 and "stopped" in stopped.stdout
    stack.assert_nothing_runs()
    assert not runs(status["pid"])
    assert stack.run("status").returncode == 1
    assert stack.run("down").returncode == 0


def test_detach_reports_a_failed_start_and_leaves_nothing(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="load=30,die=0.4")
    done = stack.run("up", "--port", "0", "--detach")
    assert done.returncode == 1
    assert "soloist: engine ended with exit code 7: engine: the last words" in done.stderr
    stack.assert_nothing_runs()
    assert not (stack.home / "run" / "stack.json").exists()


def test_interrupting_a_detached_start_stops_it(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="load=30")
    waiting = stack.start("up", "--port", "0", "--detach")
    wait_until(lambda: "gateway start" in stack.events(), "children")
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(10) == 130
    stack.assert_nothing_runs()


def test_interrupting_a_start_stops_it(stack: FakeStack) -> None:
    stack.behave(FAKE_ENGINE="load=30")
    launcher = stack.start("up", "--port", "0")
    wait_until(lambda: "gateway start" in stack.events(), "children")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(10) == 130
    stack.assert_nothing_runs()


def test_restart_replaces_a_dead_child(stack: FakeStack) -> None:
    launcher = stack.start_ready("--restart")
    first = stack.pids("engine")[0]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: "engine is ready again" in stack.output(), "the restart")
    assert "engine ended with signal SIGKILL; starting it again in 0.5 s" in stack.output()
    second = stack.pids("engine")[1]
    status = json.loads(stack.run("status", "--json").stdout)
    assert {child["name"]: child["pid"] for child in status["children"]}["engine"] == second
    launcher.terminate()
    assert launcher.wait(10) == 0
    stack.assert_nothing_runs()


def test_down_ends_leftovers_but_never_a_recycled_pid(stack: FakeStack) -> None:
    """Where no parent-death signal exists, the state file is what finds the survivors of a killed launcher."""
    launcher = stack.start_ready()
    state_path = stack.home / "run" / "stack.json"
    fields = json.loads(state_path.read_text(encoding="utf-8"))
    launcher.kill()
    launcher.wait()
    stack.assert_nothing_runs()
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    try:
        for child, sleeper in zip(fields["children"], sleepers, strict=False):
            name = identify(sleeper.pid)
            assert name is not None
            child["process"] = {"pid": name.pid, "identity": name.identity}
        fields["children"][1]["process"]["identity"] += "1"
        state_path.write_text(json.dumps(fields), encoding="utf-8")
        assert stack.run("down").returncode == 0
        assert sleepers[0].wait(5) == -signal.SIGTERM
        assert sleepers[1].poll() is None
        assert not state_path.exists()
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.mark.parametrize(
    ("variables", "flags", "text"),
    [
        ({"ENGINE_MODEL": "a"}, ["--model", "b"], "the model is given twice: --model is b, ENGINE_MODEL is a"),
        ({"GATEWAY_PORT": "9"}, ["--port", "0"], "the port is given twice: --port is 0, GATEWAY_PORT is 9"),
        ({}, ["--port", "70000"], "--port 70000: a port is a number from 1 to 65535, or 0"),
        ({"GATEWAY_ENGINE_URL": "http://x"}, ["--port", "0"], "GATEWAY_ENGINE_URL is http://x, but `up` starts"),
        ({"SOLOIST_HOEM": "x"}, [], "unknown setting SOLOIST_HOEM"),
        (
            {"REDIS_URL": "redis://u:secret@a:1", "GATEWAY_REDIS_URL": "redis://b"},
            ["--port", "0"],
            "Redis is given twice: REDIS_URL is redis://a:1, GATEWAY_REDIS_URL is redis://b",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_refused(stack: FakeStack, variables: dict[str, str], flags: list[str], text: str) -> None:
    stack.behave(**variables)
    done = stack.run("up", *flags)
    assert done.returncode == 2
    assert text in done.stderr
    assert stack.all_pids() == []


def test_a_given_redis_is_used_and_must_answer(stack: FakeStack, taken_port: int) -> None:
    stack.behave(REDIS_URL="redis://:pw@127.0.0.1:1")
    done = stack.run("up", "--port", "0")
    assert done.returncode == 1
    assert "Redis at redis://127.0.0.1:1 does not answer: connection refused" in done.stderr
    assert stack.all_pids() == []
