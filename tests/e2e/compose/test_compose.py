"""Runs the container scenario as a user would and says loudly when this machine cannot start Docker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
EXIT_UNAVAILABLE = 3
CLEAN_UP_TIMEOUT_S = 120


# The scenario as it would run for a user without rights and without a Docker engine.
POWERLESS = """
import runpy
import e2e.compose.docker_engine as docker_engine
docker_engine.is_root = lambda: False
runpy.run_module("e2e.compose", run_name="__main__")
"""


def test_scenario_says_loudly_that_it_cannot_run_here() -> None:
    environ = os.environ | {"PYTHONPATH": str(TESTS), "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    done = subprocess.run([sys.executable, "-c", POWERLESS], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_UNAVAILABLE, done.stderr
    assert "CONTAINERS NOT TESTED: no Docker engine answers and only root can start one" in done.stderr
    assert done.stdout == ""


@pytest.mark.release
@pytest.mark.timeout(2400)
def test_stack_answers_survives_kills_and_stops() -> None:
    scenario = subprocess.Popen(
        [sys.executable, "-m", "e2e.compose"], env=os.environ | {"PYTHONPATH": str(TESTS)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, log = scenario.communicate()
    finally:
        if scenario.poll() is None:  # interrupted or timed out: let it clean up what it started
            scenario.terminate()
            scenario.wait(CLEAN_UP_TIMEOUT_S)
    if scenario.returncode == EXIT_UNAVAILABLE:
        pytest.skip(log[log.rfind("CONTAINERS NOT TESTED") :].splitlines()[0])
    assert scenario.returncode == 0, log[-8000:]
    report = json.loads(output)
    print(report["seconds"])
    assert "def " in report["answer"]
