"""Planned == bound: what `plan` says of this machine, against what a started engine reports and keeps."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.engine_http import call, wait_until_ready

SERVICES = Path(__file__).resolve().parents[3] / "services"
CONTEXT = "640"
CHUNK_TOKENS = "128"


def environment(home: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENGINE_", "OTEL_"))}
    return kept | {"PYTHONPATH": str(SERVICES), "SOLOIST_HOME": str(home)} | settings


@contextmanager
def started_engine(home: Path, model: str, **settings: str) -> Iterator[int]:
    """The port of an engine that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "engine"],
        env=environment(home, ENGINE_MODEL=model, ENGINE_PORT=str(port), ENGINE_DEVICE="cpu", **settings),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_ready(port, timeout_s=120.0)
        yield port
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
    options = ("--context", CONTEXT, "--chunk-tokens", CHUNK_TOKENS)
    plan = planned(home, "--model", "smollm2-135m", *options)
    with started_engine(home, "smollm2-135m", ENGINE_CONTEXT=CONTEXT, ENGINE_CHUNK_TOKENS=CHUNK_TOKENS) as port:
        memory = call(port, "GET", "/v1/info")[1]["memory"]
    assert memory["regions"] == plan["regions"]
    assert memory["total_bytes"] == plan["total_bytes"]
    assert plan["device"]["name"] == "machine" and plan["choice"]["executor"] == "reference"
