"""The virtual environment with a fake pip: made once, again only when needed, never half, cheap afterwards."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.environment import MARKER_NAME, STAMP_NAME, read_names
from launcher.pip_run import PipProgress
from support.launcher_stack import ROOT, FakeStack, runs, wait_until

OVERHEAD_S_MAX = 0.5


def num_installs(stack: FakeStack) -> int:
    return len([event for event in stack.events() if event.startswith("pip")])


def num_venvs(stack: FakeStack) -> int:
    return stack.events().count("venv")


def test_first_use_installs_once(new_stack: FakeStack) -> None:
    first = new_stack.run("models")
    assert first.returncode == 0, first.stderr
    assert "first use: making the virtual environment" in first.stderr
    assert json.loads(first.stdout), "progress stays off stdout"
    second = new_stack.run("models", "--json")
    assert second.stderr == ""
    assert (num_venvs(new_stack), num_installs(new_stack)) == (1, 1)


def test_only_verbs_that_need_packages_make_it(new_stack: FakeStack) -> None:
    for verb in (
        ["--help"],
        ["up", "--help"],
        ["status"],
        ["down"],
        ["doctor"],
        ["chat", "x", "--url", "http://[::1]:1"],
    ):
        new_stack.run(*verb)
    assert new_stack.events() == [] or set(new_stack.events()) <= {"models"}
    assert not new_stack.venv.exists()


def test_failed_first_use_leaves_nothing(new_stack: FakeStack) -> None:
    new_stack.behave(FAKE_PIP="fail")
    done = new_stack.run("models")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "soloist: installing packages failed: the package index cannot be reached: check the network"
    )
    assert not new_stack.venv.exists()
    assert "NewConnectionError" in (new_stack.home / "run" / "install.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_first_use_leaves_nothing(new_stack: FakeStack, number: int) -> None:
    new_stack.behave(FAKE_PIP="slow")
    process = new_stack.start("models")
    wait_until(lambda: num_installs(new_stack), "pip")
    process.send_signal(number)
    assert process.wait(10) == 130
    assert not new_stack.venv.exists()


def test_killed_first_use_is_not_used_and_made_again(new_stack: FakeStack) -> None:
    new_stack.behave(FAKE_PIP="slow")
    process = new_stack.start("models")
    wait_until(lambda: num_installs(new_stack), "pip")
    process.kill()
    process.wait()
    assert (new_stack.venv / MARKER_NAME).exists() and not (new_stack.venv / STAMP_NAME).exists()
    new_stack.behave(FAKE_PIP="ok")
    assert new_stack.run("models").returncode == 0
    assert num_venvs(new_stack) == 2
    assert not (new_stack.venv / MARKER_NAME).exists()


def test_two_first_uses_at_once_install_once(new_stack: FakeStack) -> None:
    processes = [new_stack.start("models") for _ in range(2)]
    assert [process.wait(20) for process in processes] == [0, 0]
    assert (num_venvs(new_stack), num_installs(new_stack)) == (1, 1)


def test_changed_stamp_updates_in_place(new_stack: FakeStack) -> None:
    new_stack.run("models")
    stamp = json.loads((new_stack.venv / STAMP_NAME).read_text(encoding="utf-8"))
    stamp["groups"]["run"] = "of older constraints"
    (new_stack.venv / STAMP_NAME).write_text(json.dumps(stamp), encoding="utf-8")
    new_stack.behave(FAKE_PIP="fail")
    assert new_stack.run("models").returncode == 1
    assert new_stack.venv.exists(), "a failed update keeps the packages of an older state"
    assert not (new_stack.venv / STAMP_NAME).exists(), "but it does not pass for usable"
    new_stack.behave(FAKE_PIP="ok")
    assert new_stack.run("models").returncode == 0
    assert (num_venvs(new_stack), num_installs(new_stack)) == (1, 3)


def test_a_torn_package_is_forgotten_after_a_kill(new_stack: FakeStack) -> None:
    new_stack.run("models")
    site = new_stack.venv / "lib/python3.11/site-packages"
    for name, is_whole in (("torn", False), ("whole", True)):
        (site / f"{name}-1.dist-info").mkdir()
        if is_whole:
            (site / f"{name}-1.dist-info" / "RECORD").touch()
    (new_stack.venv / MARKER_NAME).write_text("update", encoding="ascii")
    assert new_stack.run("models").returncode == 0
    assert [path.name for path in site.iterdir()] == ["whole-1.dist-info"]


def test_a_replaced_base_python_makes_it_again(new_stack: FakeStack) -> None:
    new_stack.run("models")
    (new_stack.venv / "bin/python").unlink()
    (new_stack.venv / "bin/python").symlink_to("/nonexistent/python3.11")
    assert new_stack.run("models").returncode == 0
    assert num_venvs(new_stack) == 2


def test_a_foreign_folder_is_refused(new_stack: FakeStack) -> None:
    new_stack.venv.mkdir()
    (new_stack.venv / "thesis.tex").touch()
    done = new_stack.run("models")
    assert done.returncode == 1
    assert f"{new_stack.venv} is not a virtual environment" in done.stderr
    assert (new_stack.venv / "thesis.tex").exists()


def test_dev_is_installed_for_test_and_bench_only(new_stack: FakeStack) -> None:
    names = read_names(ROOT)
    new_stack.run("models")
    new_stack.run("bench", "decode", "--no-such-option")
    lines = [
        line for line in (new_stack.venv.parent / "events").read_text(encoding="utf-8").splitlines() if "pip" in line
    ]
    assert lines[0].split()[1:] == names["run"]
    assert lines[1].split()[1:] == [*names["run"], *names["dev"]]


def test_overhead_of_a_later_use(new_stack: FakeStack) -> None:
    """Loose, for a busy machine: the command beside the bare interpreter that runs it, best of five."""
    new_stack.run("models")

    def best_s(*command: str) -> float:
        runs_s = []
        for _ in range(5):
            started_s = time.perf_counter()
            subprocess.run(command, env=new_stack.environ, capture_output=True, check=False)
            runs_s.append(time.perf_counter() - started_s)
        return min(runs_s)

    command_s = best_s(sys.executable, str(ROOT / "soloist"), "status")
    assert command_s - best_s(sys.executable, "-c", "pass") < OVERHEAD_S_MAX


def test_killing_the_launcher_kills_pip(new_stack: FakeStack) -> None:
    new_stack.behave(FAKE_PIP="slow")
    process = new_stack.start("models")
    wait_until(lambda: num_installs(new_stack), "pip")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this kernel lists no children")
    pids = [int(pid) for pid in children.read_text(encoding="ascii").split()]
    assert pids
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(runs, pids)), "pip's end", timeout_s=3)


def test_progress_condenses_pip() -> None:
    progress = PipProgress()
    progress.note("Collecting torch==2.13.0 (from -c constraints.txt (line 90))")
    progress.note("  Downloading https://host.example/a/torch-2.13.0-cp311-cp311-linux_x86_64.whl (530.1 MB)")
    assert progress.describe(0) == "1 packages found · downloading torch-2.13.0 (530.1 MB) · "
    progress.note("Collecting nvidia-ml-py==13")
    assert not progress.wants_cuda
    progress.note("Collecting nvidia-cublas==13 (from torch)")
    assert progress.wants_cuda
    progress.note("Installing collected packages: torch, numpy, gguf")
    assert progress.describe(2) == "2/3 packages in place · "


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "the disk is full"),
        ("Temporary failure in name resolution", "the package index cannot be reached"),
        ("ERROR: No matching distribution found for torch==9", "No matching distribution found for torch==9"),
        ("something odd", "something odd"),
    ],
)
def test_failures_of_pip_are_one_line(line: str, reason: str) -> None:
    progress = PipProgress()
    progress.note(line)
    assert progress.explain_failure().startswith(reason)


def test_an_old_python_gets_one_line(tmp_path: Path) -> None:
    """The root script parses on Python 3.6 and stops before it reads anything newer."""
    source = (ROOT / "soloist").read_text(encoding="utf-8")
    compile(source, "soloist", "exec", flags=0x400, _feature_version=6)
    pretend = "import sys; sys.version_info = (3, 8, 10, 'final', 0); sys.argv = ['soloist', 'up']\n"
    script = tmp_path / "old.py"
    script.write_text(pretend + source, encoding="utf-8")
    environ = {"PATH": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "soloist: needs Python 3.11 or newer, this is 3.8; install Python 3.11 or newer\n"


def test_the_script_runs_from_anywhere(tmp_path: Path, new_stack: FakeStack) -> None:
    link = tmp_path / "soloist-link"
    link.symlink_to(ROOT / "soloist")
    done = subprocess.run([link, "status"], cwd="/", env=new_stack.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not running" in done.stdout
    assert shutil.which("soloist", path=str(ROOT)), "executable"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
