"""What the whole test run shares: property tests without deadlines (machines are shared), and the default model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from contracts.home import resolve_home

SERVICES = Path(__file__).resolve().parents[1] / "services"

# Numerical libraries read these when they are first imported; the engine sets them too (services/engine/settings.py).
# Without them every parallel region of a test waits, spinning, for threads that other processes keep from running.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile("soloist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("soloist")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The whole model folder of smollm2-135m, fetched at most once; tests that use it carry the marker `weights`."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.fetch", "smollm2-135m"],
        env=os.environ | {"PYTHONPATH": str(SERVICES)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return resolve_home(os.environ) / "models" / "smollm2-135m"
