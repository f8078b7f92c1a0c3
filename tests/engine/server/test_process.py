"""The engine process: exit codes and their one line, signals, start-up order, what a kill leaves, memory that stays."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import SetupError
from contracts.generate import Failed, Finished, Tokens
from engine.digest_check import DigestCheck
from engine.model_home import folder_path, open_folder
from engine.settings import library_environment
from engine.startup import load_engine, plan_engine, report_memory
from support.engine_http import EngineCall, call, wait_until_ready
from support.tiny_engine import TINY, make_config, make_home, make_request

ROOT = Path(__file__).resolve().parents[3]
PROMPT = [(17 * i) % TINY.vocab_size for i in range(100)]
NO_STOP = {"logit_bias": {0: -100.0, 2: -100.0}}
# The allocator may keep a few pages more after any request; growth would show as this much per a few requests.
RSS_SLACK_BYTES = 8 << 20


@dataclass
class Process:
    """A child and its port."""

    child: subprocess.Popen[str]
    port: int

    def end(self, signal_number: int) -> tuple[int, str]:
        """Send a signal; exit code and standard error."""
        self.child.send_signal(signal_number)
        _, log = self.child.communicate(timeout=30)
        return self.child.returncode, log


def environment(home: Path, **settings: str) -> dict[str, str]:
    """What `python -m engine` would run its server with: one thread keeps the tiny model from paying for barriers."""
    inherited = library_environment().items()
    kept = {name: value for name, value in inherited if not name.startswith(("ENGINE_", "OTEL_"))}
    path = f"{ROOT / 'services'}{os.pathsep}{ROOT / 'tests'}"
    return (
        kept
        | {"PYTHONPATH": path, "SOLOIST_HOME": str(home), "ENGINE_MODEL": TINY.name, "ENGINE_THREADS": "1"}
        | settings
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(home: Path, **settings: str) -> Iterator[Process]:
    port = free_port()
    child = subprocess.Popen(
        [sys.executable, "-m", "support.tiny_engine"], stderr=subprocess.PIPE, text=True,
        env=environment(home, ENGINE_PORT=str(port), **settings),
    )  # fmt: skip
    try:
        yield Process(child, port)
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def run_to_exit(module: str, env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", module], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ENGINE_PROT": "1"}, "unknown setting ENGINE_PROT"),
        ({"ENGINE_PORT": "http"}, "ENGINE_PORT='http'"),
        ({"ENGINE_CHUNK_TOKENS": "100"}, "multiple of 64"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense"}, "OTEL_EXPORTER_OTLP_ENDPOINT='nonsense': expected an http://"),
        ({"ENGINE_MODEL": "gpt-5"}, "model 'gpt-5' is not supported"),
        ({"ENGINE_MODEL": "smollm2-135m"}, "run: ./soloist fetch smollm2-135m"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    code, log = run_to_exit("engine", environment(tmp_path, **settings))
    assert code == 2 and log.startswith("engine: ") and text in log and log.count("\n") == 1


def test_a_plan_that_does_not_fit_is_one_line_and_exit_code_2(tiny_home: Path) -> None:
    code, log = run_to_exit("support.tiny_engine", environment(tiny_home, ENGINE_MEMORY_BYTES="4000000"))
    assert code == 2 and "the budget is 4000000 bytes (3.8 MiB): " in log and " short. To fit: ENGINE_" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"memory_bytes": 1000}, "No single change is enough"),
        ({"context": 2048}, "ENGINE_CONTEXT is 2048, tiny-engine has a window of 1024"),
        ({"kv_format": "rk4v4-e8"}, "KV format rk4v4-e8 needs head_dim"),
        pytest.param(
            {"device": "cuda"}, "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)  # fmt: skip
def test_plans_that_cannot_run_are_refused(tiny_home: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SetupError, match=text):
        plan_engine(make_config(tiny_home, **settings), TINY)


def test_plan_is_bound_to_the_byte_and_reported(tiny_home: Path) -> None:
    plan = plan_engine(make_config(tiny_home, memory_bytes=100_000_000, context=512), TINY)
    report = report_memory(plan)
    assert sum(region.bytes for region in report.regions) == report.total_bytes == plan.memory.total_bytes
    assert report.left_bytes == 100_000_000 - report.total_bytes
    engine = load_engine(plan, lambda _: None, lambda: None)
    assert engine.info().memory == report and engine.info().context_limit == 512
    assert engine.close(10.0)


def test_help_explains_every_setting() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "--help"], env=environment(Path("/nowhere")),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    for name in ("HOST", "PORT", "MODEL", "CONTEXT", "KV_FORMAT", "DEVICE", "MEMORY_BYTES", "THREADS", "CHUNK_TOKENS"):
        assert f"ENGINE_{name}" in done.stdout


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["weights.gguf", "tokenizer.json"])
def test_a_damaged_file_of_the_right_size_is_exit_code_2(tmp_path: Path, name: str) -> None:
    flip_last_byte(folder_path(make_home(tmp_path), TINY.name) / name)
    port = str(free_port())
    code, log = run_to_exit("support.tiny_engine", environment(tmp_path, ENGINE_PORT=port))
    lines = [line for line in log.splitlines() if f"{name} is damaged" in line]
    assert code == 2 and len(lines) == 1 and "Traceback" not in log and "ready" not in log
    assert re.search(
        r"has SHA-256 [0-9a-f]{12}\.\.\., expected [0-9a-f]{12}\.\.\.; remove .*/tiny-engine and run:", lines[0]
    )
    assert "./soloist fetch tiny-engine" in lines[0]


def test_files_above_the_limit_are_left_to_verify(tmp_path: Path) -> None:
    folder = open_folder(make_home(tmp_path), TINY.name)
    flip_last_byte(folder.weights_path)
    DigestCheck(folder, folder.weights_path.stat().st_size - 1).require_equal()
    with pytest.raises(SetupError, match=r"weights\.gguf is damaged"):
        DigestCheck(folder, folder.weights_path.stat().st_size).require_equal()


def test_an_address_in_use_is_exit_code_1(tiny_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, log = run_to_exit("support.tiny_engine", environment(tiny_home, ENGINE_PORT=port))
    assert code == 1 and f"cannot listen on 127.0.0.1:{port}" in log and "Traceback" not in log


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_pauses_streams_and_exits_0_at_once(tiny_home: Path, signal_number: int) -> None:
    with running(tiny_home) as process:
        wait_until_ready(process.port)
        with EngineCall(process.port, make_request([5], 900, "a", sampling=NO_STOP)) as generation:
            generation.wait_for(Tokens)
            started_s = time.monotonic()
            process.child.send_signal(signal_number)
            failed = generation.read_to_end()[-1]
        assert isinstance(failed, Failed) and (failed.code, failed.retryable) == ("shutting_down", True)
        _, log = process.child.communicate(timeout=30)
        assert process.child.returncode == 0 and time.monotonic() - started_s < 5.0
        assert "Traceback" not in log


def test_a_signal_while_loading_exits_0(tiny_home: Path) -> None:
    with running(tiny_home) as process:
        while True:
            try:
                call(process.port, "GET", "/health/live")
                break
            except OSError:
                assert process.child.poll() is None
                time.sleep(0.01)
        code, log = process.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in log


def test_a_killed_engine_breaks_the_stream_and_starts_again(tiny_home: Path) -> None:
    with running(tiny_home) as process:
        wait_until_ready(process.port)
        with EngineCall(process.port, make_request([5], 900, "a", sampling=NO_STOP)) as generation:
            generation.wait_for(Tokens)
            process.child.kill()
            events = list(generation)
            assert not any(isinstance(event, Finished | Failed) for event in events)
    with running(tiny_home) as process:
        wait_until_ready(process.port)
        with EngineCall(process.port, make_request([5], 3, "b", sampling=NO_STOP)) as generation:
            assert isinstance(generation.read_to_end()[-1], Finished)


def test_memory_stays_flat_over_many_requests(tiny_home: Path) -> None:
    with running(tiny_home) as process:
        wait_until_ready(process.port)

        def churn(num_requests: int) -> int:
            for number in range(num_requests):
                prompt = [(number + 31 * i) % TINY.vocab_size for i in range(1 + 37 * number % 900)]
                with EngineCall(process.port, make_request(prompt, 20, f"{num_requests}-{number}")) as generation:
                    if number % 5:
                        generation.read_to_end()
            fields = Path(f"/proc/{process.child.pid}/statm").read_text().split()
            return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

        churn(60)
        before = churn(40)
        after = churn(120)
    assert after - before < RSS_SLACK_BYTES, f"resident memory grew from {before} to {after} bytes"
