"""The stack as a newcomer gets it: `./soloist up`, the openai SDK, smollm2-135m on this machine's CPU.

Two clients in turn, an engine killed in the middle of an answer, and a start after a crash.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from contracts.home import resolve_home
from support.launcher_stack import ROOT, runs, wait_until

pytestmark = [pytest.mark.weights, pytest.mark.timeout(240)]

MODEL = "smollm2-135m"
QUESTION = "Write a Python function that reverses a string."
START_S_MAX = 20.0
START_WAIT_S = 90.0


class RealStack:
    """`./soloist up` in the foreground on a home of its own that shares the machine's models."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        self._log_path = home / "up.log"
        self._environ = os.environ | {"SOLOIST_HOME": str(home), "SOLOIST_VENV": sys.prefix}
        self.started_s = time.monotonic()
        with self._log_path.open("wb") as log:
            command = [str(ROOT / "soloist"), "up", "--port", "0", *flags]
            self.launcher = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log, start_new_session=True)

    def wait_ready(self) -> None:
        """Wait for the announcement."""
        wait_until(
            lambda: "Soloist is ready" in self.log() or self.launcher.poll() is not None,
            "ready",
            timeout_s=START_WAIT_S,
        )
        assert self.launcher.poll() is None, self.log()

    def log(self) -> str:
        """What `up` printed."""
        return self._log_path.read_text(encoding="utf-8")

    def status(self) -> dict[str, object]:
        """`./soloist status --json`."""
        command = [str(ROOT / "soloist"), "status", "--json"]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)
        status: dict[str, object] = json.loads(done.stdout)
        return status

    @property
    def url(self) -> str:
        """The gateway's address."""
        return str(self.status()["url"])

    def child_pid(self, name: str) -> int:
        """The pid of one service."""
        children = self.status()["children"]
        assert isinstance(children, list)
        return next(int(child["pid"]) for child in children if child["name"] == name)

    def close(self) -> None:
        """Stop it if it runs."""
        self.launcher.terminate()
        try:
            self.launcher.wait(60)
        finally:
            self.launcher.kill()
            self.launcher.wait()


def make_home(folder: Path) -> Path:
    subprocess.run([ROOT / "soloist", "fetch", MODEL], env=os.environ | {"SOLOIST_VENV": sys.prefix}, check=True)
    folder.mkdir(exist_ok=True)
    (folder / "models").symlink_to(resolve_home(os.environ) / "models")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def stack(home: Path) -> Iterator[RealStack]:
    running = RealStack(home, "--restart")
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def chat_body(text: str, **fields: object) -> dict[str, object]:
    message = {"role": "user", "content": text}
    return {"model": MODEL, "stream": True, "temperature": 0, "messages": [message], **fields}


def read_events(response: httpx.Response) -> Iterator[dict[str, object]]:
    for line in response.iter_lines():
        if line.startswith("data:") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data:"))


def content_of(event: dict[str, object]) -> str:
    choices = event.get("choices")
    return (choices[0]["delta"].get("content") or "") if isinstance(choices, list) and choices else ""


def stream_until_killed(url: str, engine_pid: int) -> list[dict[str, object]]:
    """Stream a long answer, SIGKILL the engine at its first words, and return every event."""
    events = []
    was_killed = False
    body = chat_body("Write a long story about a river.", max_tokens=400)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        for event in read_events(response):
            events.append(event)
            if content_of(event) and not was_killed:
                os.kill(engine_pid, signal.SIGKILL)
                was_killed = True
    assert was_killed
    return events


def test_the_openai_sdk_streams_a_sensible_answer(stack: RealStack) -> None:
    client = OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], stream=True, temperature=0, max_tokens=120
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    text = "".join(pieces)
    assert sum(map(bool, pieces)) > 10, "it streams"
    assert "def " in text and "return" in text, text
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_soloist_chat_prints_the_same_answer(stack: RealStack) -> None:
    command = [str(ROOT / "soloist"), "chat", "Say hello.", "--url", stack.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_two_clients_at_once_are_served_in_turn(stack: RealStack) -> None:
    spans: list[tuple[float, float]] = []
    url = stack.url
    barrier = threading.Barrier(2)

    def ask(number: int) -> None:
        times_s = []
        barrier.wait()
        body = chat_body(f"Count to {number}.", max_tokens=32)
        headers = {"x-api-key": f"agent-{number}"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60) as response:
            assert response.status_code == 200
            times_s = [time.monotonic() for event in read_events(response) if content_of(event)]
        spans.append((times_s[0], times_s[-1]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in (20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spans) == 2, "both were answered"
    first, second = sorted(spans)
    assert first[1] < second[0], "one after the other: their tokens never interleave"


def test_an_engine_killed_mid_stream_ends_it_with_an_error_and_comes_back(stack: RealStack) -> None:
    url, engine_pid = stack.url, stack.child_pid("engine")
    events = stream_until_killed(url, engine_pid)
    assert "error" in events[-1], "the stream says that it was cut"
    assert not any("error" in event for event in events[:-1])
    wait_until(lambda: "engine is ready again" in stack.log(), "the restart", timeout_s=START_WAIT_S)
    assert "starting it again in 0.5 s" in stack.log()
    assert stack.child_pid("engine") != engine_pid
    done = httpx.post(f"{url}/v1/chat/completions", json=chat_body("Hi", stream=False, max_tokens=8), timeout=60)
    assert done.status_code == 200, done.text
    assert done.json()["choices"][0]["message"]["content"]


def test_without_restart_the_stack_stops_and_up_works_again(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    broken = RealStack(home)
    try:
        broken.wait_ready()
        pids = [broken.child_pid(name) for name in ("redis", "engine", "gateway")]
        events = stream_until_killed(broken.url, pids[1])
        assert "error" in events[-1]
        assert broken.launcher.wait(60) == 1
        assert "soloist: engine ended with signal SIGKILL" in broken.log()
        assert not any(map(runs, pids))
    finally:
        broken.close()
    again = RealStack(home)
    try:
        again.wait_ready()
        body = chat_body("Hi", stream=False, max_tokens=8)
        done = httpx.post(f"{again.url}/v1/chat/completions", json=body, timeout=60)
        took_s = time.monotonic() - again.started_s
        assert done.status_code == 200, done.text
        assert took_s <= START_S_MAX, f"up to first answered request took {took_s:.1f} s"
        again.launcher.send_signal(signal.SIGINT)
        assert again.launcher.wait(60) == 0
    finally:
        again.close()
