"""Random clients on a random engine: whoever waits is answered exactly once, and afterwards nothing is held."""

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.generate import Failed
from support.gateway_stack import GatewayStack, RawRequest, wait_until
from support.redis_server import RedisServer
from support.scripted_engine import Script

NUM_CLIENTS = 16
NUM_REQUESTS = 25


def draw_script(draw: random.Random) -> Script:
    fault = draw.random()
    if fault < 0.03:
        return Script(refuse=Failed("engine_busy", "one runs and one waits", True), refuse_status=409)
    return Script(
        text="word " * draw.randint(1, 40),
        token_delay_s=draw.choice([0, 0.001, 0.005]),
        prefill_events=draw.randint(1, 5),
        prefill_delay_s=draw.choice([0, 0.01]),
        accept_delay_s=draw.choice([0, 0, 0.02]),
        drop_after=draw.randint(0, 10) if fault < 0.08 else None,
        garbage_after=3 if 0.08 < fault < 0.11 else None,
        fail=Failed("numerical_error", "not finite", False) if 0.11 < fault < 0.16 else None,
        fail_after=draw.randint(0, 10),
    )


def run_client(port: int, seed: int, ends: list[str]) -> None:
    draw = random.Random(seed)
    for _ in range(NUM_REQUESTS):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "hi " * draw.randint(1, 200)}],
            "stream": draw.random() < 0.7,
            "max_tokens": draw.choice([1, 5, 50, None]),
            "stop": draw.choice([None, None, ["word w"]]),
        }
        headers = {"x-soloist-agent": f"agent{seed % 5}", "connection": "close"}
        with RawRequest(port, body, headers=headers) as request:
            if draw.random() < 0.5:
                time.sleep(draw.random() * 0.3)
                ends.append("left")
                continue
            received = b""
            while chunk := request.socket.recv(65536):
                received += chunk
        marks = (received.count(b"[DONE]"), received.count(b'"error":'), received.count(b'"chat.completion"'))
        ends.append(f"{received[9:12].decode()} {marks}")


@pytest.mark.full
def test_chaos(home: Path, redis: RedisServer) -> None:
    with GatewayStack(home, redis.url) as stack:
        draw, over = random.Random(1), threading.Event()

        def feed() -> None:
            while not over.wait(0.005):
                missing = 5 - len(stack.engine.next_scripts)
                stack.engine.next_scripts += [draw_script(draw) for _ in range(missing)]

        ends: list[str] = []
        threads = [threading.Thread(target=run_client, args=(stack.port, seed, ends)) for seed in range(NUM_CLIENTS)]
        feeder = threading.Thread(target=feed)
        for thread in (feeder, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        feeder.join()
        counts = Counter(ends)
        assert counts.total() == NUM_CLIENTS * NUM_REQUESTS
        whole, streamed = counts.pop("200 (0, 0, 1)"), counts.pop("200 (1, 0, 0)")
        assert whole > 10 and streamed > 10, "each answered exactly once"
        assert set(counts) <= {"left", "200 (0, 1, 0)", "500 (0, 1, 0)", "503 (0, 1, 0)"}, counts
        stack.reset()
        wait_until(lambda: stack.ask().status_code == 200, "a normal answer", timeout_s=3.0)
        assert stack.metric("soloist_queue_depth") == 0
        wait_until(lambda: stack.metric("soloist_requests_active") == 0, "the gauge to return")
