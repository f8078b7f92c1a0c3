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
        pytest.skip(log[log.rfind("CONTAINERS NOT TESTED") :].strip())
    assert scenario.returncode == 0, log[-8000:]
    report = json.loads(output)
    print(report["seconds"])
    assert "def " in report["answer"]
