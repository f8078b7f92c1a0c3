"""The compose stack as a test drives it: up, questions through the openai SDK, crashes, stops, down.

Owns one compose project with its own name, tags and port. Checks what a user would see; judges no answer but its sense.
"""

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import openai

from e2e.compose.steps import StepFailed, Steps

PROJECT = "soloist-e2e"
MODEL = "smollm2-135m"
QUESTION = "Write a Python function that reverses a string."
UP_TIMEOUT_S = 300
RESTART_TIMEOUT_S = 90
# The main processes answer SIGTERM themselves; a stop that takes longer waited for SIGKILL.
STOP_LIMIT_S = 15


class Stack:
    """One compose project made of compose.yaml and compose.cpu.yaml in a build context."""

    def __init__(self, steps: Steps, context: Path, base: str, engine_target: str) -> None:
        self._steps = steps
        self._context = context
        self._port = _free_port()
        steps.environ |= {
            "SOLOIST_BASE_IMAGE": base,
            "SOLOIST_REDIS_IMAGE": base,
            "SOLOIST_TAG": "e2e",
            "SOLOIST_MODEL": MODEL,
            "SOLOIST_ENGINE_TARGET": engine_target,
            "GATEWAY_PORT": str(self._port),
        }

    def compose(self, *words: str, timeout_s: float = 600) -> str:
        """Output of a compose command on this project."""
        files = ["-f", "compose.yaml", "-f", "compose.cpu.yaml"]
        command = ["docker", "compose", "--project-name", PROJECT, *files, *words]
        return self._steps.run(command, cwd=self._context, timeout_s=timeout_s)

    def up(self) -> None:
        """Start what is not running and wait until every service is healthy."""
        self.compose("up", "--detach", "--wait", "--pull", "never", timeout_s=UP_TIMEOUT_S)

    def down(self) -> None:
        """Remove containers, network, volumes and the images built for this project."""
        self.compose("down", "--volumes", "--timeout", "5", "--remove-orphans")
        for service in ("engine", "gateway"):
            self._steps.succeeds(["docker", "image", "rm", "--force", f"soloist-{service}:e2e"])

    def logs(self) -> str:
        """The last lines of every container, for a failed run."""
        return self.compose("logs", "--no-color", "--tail", "40")

    def ask(self) -> str:
        """The streamed answer to the question, whole; raises StepFailed when it is cut off or makes no sense."""
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self._port}/v1", api_key="none", max_retries=0, timeout=180)
        try:
            with client:
                stream = client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": QUESTION}], stream=True, max_tokens=200,
                    temperature=0,
                )  # fmt: skip
                choices = [chunk.choices[0] for chunk in stream if chunk.choices]
        except openai.OpenAIError as error:
            raise StepFailed(f"the question got no answer: {error}") from error
        text = "".join(choice.delta.content or "" for choice in choices)
        if choices[-1].finish_reason not in ("stop", "length"):
            raise StepFailed(f"the stream ended with {choices[-1].finish_reason!r} after {text!r}")
        return text

    def check_refusal(self) -> None:
        """Without an engine the gateway is alive, not ready, and refuses in OpenAI's shape with Retry-After."""
        self._await(lambda: self._fetch("/health/live")[0] == 200, "the gateway is alive")
        live, _ = self._fetch("/health/live")
        ready, _ = self._fetch("/health/ready")
        if (live, ready) != (200, 503):
            raise StepFailed(f"without an engine /health/live says {live} and /health/ready {ready}, not 200 and 503")
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        status, answer = self._fetch("/v1/chat/completions", json.dumps(body).encode())
        if status != 503 or not json.loads(answer)["error"]["message"]:
            raise StepFailed(f"without an engine a request gets {status} {answer!r}")

    def check_confinement(self, service: str, foreign_module: str) -> None:
        """The container is not root, cannot write to its root, and cannot import another service's code."""
        script = (
            "import importlib.util, os, sys\n"
            "assert os.getuid() != 0, 'runs as root'\n"
            f"assert importlib.util.find_spec({foreign_module!r}) is None, 'can import {foreign_module}'\n"
            "try:\n    open('/app/probe', 'w')\n"
            "except OSError:\n    sys.exit(0)\n"
            "sys.exit('can write to /app')\n"
        )
        self.compose("exec", "-T", service, "python", "-c", script)

    def check_versions(self, service: str) -> None:
        """Every package in the container has the version that constraints.txt pins."""
        pins = {_normal(line) for line in (self._context / "constraints.txt").read_text(encoding="utf-8").splitlines()}
        installed = self.compose("exec", "-T", service, "python", "-m", "pip", "--no-cache-dir", "freeze").splitlines()
        stray = [line for line in installed if _normal(line).partition("+")[0] not in pins]
        if stray or not installed:
            raise StepFailed(f"the {service} image holds packages that constraints.txt does not pin: {stray}")

    def kill(self, service: str) -> None:
        """SIGKILL the container's first process as a crash would, then wait for the restart policy to bring it back."""
        container = self._container(service)
        killed = self._inspect(container, "{{.State.Pid}}")
        os.kill(int(killed), signal.SIGKILL)
        self._await(lambda: self._inspect(container, "{{.State.Pid}}") not in (killed, "0"), f"{service} restarts")
        self.await_healthy(service)

    def await_healthy(self, service: str) -> None:
        """Wait until the container's health check passes."""
        container = self._container(service)
        self._await(lambda: self._inspect(container, "{{.State.Health.Status}}") == "healthy", f"{service} is healthy")

    def stop(self, *services: str) -> None:
        """Stop services with SIGTERM; raises StepFailed when one needs SIGKILL or exits other than 0."""
        containers = {service: self._container(service) for service in services}
        started = time.monotonic()
        self.compose("stop", *services)
        seconds = time.monotonic() - started
        codes = {service: self._inspect(container, "{{.State.ExitCode}}") for service, container in containers.items()}
        if seconds > STOP_LIMIT_S or set(codes.values()) != {"0"}:
            raise StepFailed(f"stop took {seconds:.1f} s (limit {STOP_LIMIT_S}), exit codes {codes}")

    def redis(self, *words: str) -> str:
        """Output of a redis-cli command inside the container."""
        return self.compose("exec", "-T", "redis", "redis-cli", *words).strip()

    def _container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def _inspect(self, container: str, template: str) -> str:
        return self._steps.run(["docker", "inspect", "--format", template, container]).strip()

    def _fetch(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body; status 0 when nothing answers."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError as error:
            return 0, str(error).encode()

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise StepFailed(f"{what}: not within {RESTART_TIMEOUT_S} s")
            time.sleep(0.5)


def _normal(requirement: str) -> str:
    return requirement.strip().lower().replace("_", "-")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
