"""Runs the real compose stack end to end, with no image registry: PYTHONPATH=tests python -m e2e.compose.

Owns the order of the steps, the report (JSON on stdout) and the exit code: 0 passed, 1 failed, 3 cannot run here.
Everything it starts is gone afterwards, also after a failure or a signal.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from e2e.compose.docker_engine import open_engine
from e2e.compose.local_images import add_cpu_torch, build_base, lay_context
from e2e.compose.stack import Stack
from e2e.compose.steps import StepFailed, Steps, Unavailable

EXIT_FAILED = 1
EXIT_UNAVAILABLE = 3
SERVICES = ("redis", "engine", "gateway")


def main() -> int:
    """Run all steps in a folder of our own and print the seconds of each."""
    parser = argparse.ArgumentParser(prog="python -m e2e.compose", description="run the compose stack end to end")
    parser.add_argument("--engine", choices=["engine", "scripted"], default="engine", help="build target of the engine")
    target: str = parser.parse_args().engine
    signal.signal(signal.SIGTERM, _leave)
    steps = Steps(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="soloist-e2e-", dir="/var/tmp"))
    report: dict[str, object] = {"engine": target}
    try:
        with open_engine(steps, folder) as own_engine:
            report["own_docker_engine"] = own_engine
            report["answer"] = _run_stack(steps, folder, target)
    except Unavailable as error:
        print(f"CONTAINERS NOT TESTED: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except StepFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        with steps.step("remove files"):
            shutil.rmtree(folder, ignore_errors=True)
    report["seconds"] = steps.seconds
    print(json.dumps(report, indent=1))
    return 0


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_FAILED)


def _run_stack(steps: Steps, folder: Path, target: str) -> str:
    with steps.step("lay build context"):
        context = lay_context(folder)
        if target == "engine":
            add_cpu_torch(steps, context)
    stack = Stack(steps, context, build_base(steps, folder), target)
    try:
        return _exercise(steps, stack, target)
    except StepFailed:
        print(stack.logs(), file=sys.stderr)
        raise
    finally:
        with steps.step("down"):
            stack.down()


def _exercise(steps: Steps, stack: Stack, target: str) -> str:
    for service in ("gateway", "engine"):
        with steps.step(f"build {service}"):
            stack.compose("build", service, timeout_s=1800)
    with steps.step("gateway without an engine"):
        stack.compose("up", "--detach", "--pull", "never", "gateway")
        stack.await_healthy("redis")
        stack.check_refusal()
    with steps.step("up: fetch, load, healthy"):
        stack.up()
    with steps.step("first answer"):
        answer = _check_sense(stack.ask(), target)
    with steps.step("look into the containers"):
        stack.check_confinement("gateway", "engine")
        stack.check_confinement("gateway", "torch")
        stack.check_confinement("engine", "gateway")
        for service in ("engine", "gateway"):
            stack.check_versions(service)
    stack.redis("set", "e2e:kept", "yes")
    for service in SERVICES:
        with steps.step(f"kill {service}, back and answering"):
            stack.kill(service)
            stack.await_healthy("gateway")
            _check_sense(stack.ask(), target)
    if stack.redis("get", "e2e:kept") != "yes":
        raise StepFailed("Redis lost a key over kill and restart")
    with steps.step("stop"):
        stack.stop("engine", "gateway")
    with steps.step("up again, warm, to the first answer"):
        stack.up()
        _check_sense(stack.ask(), target)
    return answer


def _check_sense(answer: str, target: str) -> str:
    """The real model writes a function; the scripted one only has to say something."""
    wanted = ["def ", "return"] if target == "engine" else [""]
    if not answer or not all(word in answer for word in wanted):
        raise StepFailed(f"not a sensible answer: {answer!r}")
    return answer


if __name__ == "__main__":
    sys.exit(main())
