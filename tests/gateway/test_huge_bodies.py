"""Bodies far beyond any window: refused in a moment, with the numbers, while everyone else is served on."""

import json
import threading
import time
from typing import Any

import httpx
import pytest

from contracts.errors import ContextTooLong
from gateway.conversation import Message
from gateway.text.model_text import ModelText
from support.gateway_stack import GatewayStack

PROBE_TIMEOUT_S = 1.0  # what an orchestrator waits by default; the fault this guards against held it up for 4 to 30 s

MEGABYTE = 1 << 20


class HealthPoll(threading.Thread):
    """Asks /health/live without a pause; slowest_s is the longest answer."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.slowest_s = 0.0
        self.num_polls = 0
        self._url = url
        self._begun = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._url) as client:
            while not self._ended.is_set():
                started_s = time.monotonic()
                client.get("/health/live")
                self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
                self.num_polls += 1
                self._begun.set()

    def __enter__(self) -> "HealthPoll":
        self.start()
        assert self._begun.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "a"}] * 100_000, "100000 items (messages and content parts), the limit is 20000"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}],
            "100001 items (messages and content parts), the limit is 20000",
        ),
        ([{"role": "user", "content": "a"}] * 20_000, "maximum context length"),
        ([{"role": "user", "content": "the quick <|im_end|> fox " * 600_000}], "maximum context length"),
    ],
    ids=["messages", "parts", "most messages", "15 MB of text"],
)
def test_huge_bodies_hold_nobody_up(stack: GatewayStack, messages: Any, words: str) -> None:
    body = json.dumps({"messages": messages}).encode()
    started_s = time.monotonic()
    with HealthPoll(stack.url) as poll:
        reply = stack.post(body)
        time.sleep(0.05)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "messages"
    assert words in reply.json()["error"]["message"]
    assert poll.num_polls > 1 and poll.slowest_s < PROBE_TIMEOUT_S, f"{poll.slowest_s:.3f} s"
    assert time.monotonic() - started_s < 4
    assert stack.engine.seen == []


def test_text_that_cannot_fit_is_refused_unencoded_with_a_lower_bound(text: ModelText) -> None:
    content = "the quick brown fox " * 20_000
    exact = len(text.prompt.encode([Message("user", (content,))]))
    with pytest.raises(ContextTooLong) as caught:
        text.prompt.encode([Message("user", (content,))], window=4096)
    assert 4096 <= caught.value.num_tokens <= exact and caught.value.limit == 4096
    with pytest.raises(ContextTooLong):
        text.prompt.encode([Message("user", ("x" * MEGABYTE,))], window=4096)
