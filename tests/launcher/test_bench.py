"""The verb `bench`: explained before anything is installed, with the options that the benchmarks have."""

import os
import re
import subprocess
import sys

import pytest

from launcher.bench_help import BENCHMARKS, describe_benchmark
from support.launcher_stack import ROOT, FakeStack


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in BENCHMARKS)])
def test_help_needs_no_packages(new_stack: FakeStack, arguments: list[str]) -> None:
    done = new_stack.run("bench", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: soloist bench")
    assert not new_stack.venv.exists()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_lists_the_options_that_the_benchmark_has(name: str) -> None:
    module = ("gateway.bench",) if name == "gateway" else ("engine.bench", name)
    environ = os.environ | {"PYTHONPATH": str(ROOT / "services")}
    command = [sys.executable, "-m", *module, "--help"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert _flags(describe_benchmark(name)) == _flags(done.stdout)


def _flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z-]+", text))
