"""Fixtures of the engine's tests: the default model's folder, fetched at most once into the default home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.home import resolve_home

SERVICES = Path(__file__).resolve().parents[2] / "services"


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The whole model folder of smollm2-135m; tests that use it carry the marker `weights`."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.fetch", "smollm2-135m"],
        env=os.environ | {"PYTHONPATH": str(SERVICES)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return resolve_home(os.environ) / "models" / "smollm2-135m"
