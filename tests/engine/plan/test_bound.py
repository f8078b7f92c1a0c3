"""Planned == bound: what `plan` says of this machine, against what a started engine reports, binds and keeps."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.generate import Finished
from engine.regions import group_regions
from engine.registry import lookup
from engine.settings import EngineConfig, EngineSettings
from engine.startup import plan_engine
from support.engine_http import EngineCall, call, wait_until_ready
from support.planning import plan
from support.tiny_engine import make_request

SERVICES = Path(__file__).resolve().parents[3] / "services"
CONTEXT = "640"
CHUNK_TOKENS = "128"
# The allocator may keep a few pages more after any request; growth would show as this much per a few requests.
RSS_SLACK_BYTES = 8 << 20


@dataclass(frozen=True)
class Started:
    """A ready engine process."""

    port: int
    pid: int

    def memory(self) -> dict[str, Any]:
        report: dict[str, Any] = call(self.port, "GET", "/v1/info")[1]["memory"]
        return report

    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def environment(home: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENGINE_", "OTEL_"))}
    return kept | {"PYTHONPATH": str(SERVICES), "SOLOIST_HOME": str(home)} | settings


@pytest.fixture(scope="module")
def hybrid_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that holds tiny-hybrid alone."""
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "engine.fetch", "tiny-hybrid"]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home


@contextmanager
def started_engine(home: Path, model: str, **settings: str) -> Iterator[Started]:
    """An engine that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "engine"],
        env=environment(home, ENGINE_MODEL=model, ENGINE_PORT=str(port), ENGINE_DEVICE="cpu", **settings),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_ready(port, timeout_s=120.0)
        yield Started(port, child.pid)
    finally:
        child.terminate()
        child.wait(30)


def planned(home: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "engine.plan", *arguments, "--json"],
        env=environment(home), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.weights
def test_smollm2_binds_what_was_planned(smollm2_folder: Path) -> None:
    home = smollm2_folder.parents[1]
    answer = planned(home, "--model", "smollm2-135m", "--context", CONTEXT, "--chunk-tokens", CHUNK_TOKENS)
    settings = {"ENGINE_CONTEXT": CONTEXT, "ENGINE_CHUNK_TOKENS": CHUNK_TOKENS}
    with started_engine(home, "smollm2-135m", **settings) as engine:
        memory = engine.memory()
    assert memory["regions"] == answer["regions"]
    assert memory["total_bytes"] == answer["total_bytes"]
    assert answer["device"]["name"] == "machine" and answer["choice"]["executor"] == "reference"


def test_tiny_hybrid_binds_what_was_planned_and_takes_nothing_afterwards(hybrid_home: Path) -> None:
    """With packed keys and values and drafts by the MTP head, so that every kind of region is there."""
    options = ("--context", "4096", "--kv", "rk4v4-e8", "--drafts", "3")
    answer = planned(hybrid_home, "--model", "tiny-hybrid", *options)
    settings = {"ENGINE_KV_FORMAT": "rk4v4-e8", "ENGINE_SPECULATION": "mtp", "ENGINE_DRAFTS": "3"}
    with started_engine(hybrid_home, "tiny-hybrid", ENGINE_CONTEXT="4096", **settings) as engine:
        memory = engine.memory()
        assert memory["regions"] == answer["regions"]
        assert memory["total_bytes"] == answer["total_bytes"]
        run_requests(engine.port, 0, 8)
        before = engine.resident_bytes()
        run_requests(engine.port, 8, 32)
        after = engine.resident_bytes()
        assert engine.memory() == memory
    assert after - before < RSS_SLACK_BYTES, f"resident memory grew from {before} to {after} bytes"
    sections = {region["name"].partition(".")[0] for region in memory["regions"]}
    assert {"weights", "kv", "mtp_kv", "state", "replay", "workspace", "expanded"} <= sections


def run_requests(port: int, first: int, last: int) -> None:
    for number in range(first, last):
        prompt = [(number + 31 * i) % 2016 for i in range(1 + 37 * number % 200)]
        with EngineCall(port, make_request(prompt, 12, f"r-{number}")) as generation:
            assert isinstance(generation.read_to_end()[-1], Finished)


@pytest.mark.parametrize("kv", ["fp32", "bf16", "int8", "rk4v4-e8"])
@pytest.mark.parametrize(("speculation", "drafts"), [("off", 0), ("mtp", 1), ("mtp", 5)])
@pytest.mark.parametrize(("context", "chunk_tokens"), [(65, 64), (4096, 512), (262_144, 2048)])
def test_every_choice_is_laid_out_as_the_engine_lays_it_out(
    hybrid_home: Path, kv: Any, speculation: Any, drafts: int, context: int, chunk_tokens: int
) -> None:
    settings = EngineSettings(
        model="tiny-hybrid", context=context, kv_format=kv, device="cpu", memory_bytes=1 << 40, threads=1,
        chunk_tokens=chunk_tokens, speculation=speculation, drafts=str(drafts),
    )  # fmt: skip
    spec = lookup("tiny-hybrid").spec
    bound = plan_engine(EngineConfig(settings, hybrid_home, None), spec).memory
    options = ("--context", context, "--kv", kv, "--drafts", drafts, "--chunk-tokens", chunk_tokens)
    answer = plan("--model", "tiny-hybrid", *map(str, options), home=hybrid_home)
    assert answer.regions == group_regions(spec, bound) and answer.total_bytes == bound.total_bytes
    recipe = plan("--model", "tiny-hybrid", "--recipe", "exact", *map(str, options))
    assert recipe.regions == answer.regions, "a recipe takes what its artifact takes"
