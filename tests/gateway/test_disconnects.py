"""Clients that leave: queued, in prefill, in decode, streamed or not. The lane is free at once, nobody else notices."""

import time
from typing import Any

import pytest

from support.gateway_stack import GatewayStack, RawRequest, wait_until
from support.scripted_engine import Script

SLOW = Script(text="word " * 400, token_delay_s=0.01)
QUICK = Script(text="done")


def body(*, stream: bool) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}


def lane_is_free(stack: GatewayStack) -> None:
    """A short request is served at once: neither lane nor queue nor engine holds anything of the one that left."""
    wait_until(lambda: stack.engine.active == 0, "the engine to stop", timeout_s=2.0)
    stack.engine.script = QUICK
    started_s = time.monotonic()
    assert stack.ask().status_code == 200
    assert time.monotonic() - started_s < 1.0
    wait_until(lambda: stack.metric("soloist_requests_active") == 0, "the gauge to return")
    assert stack.metric("soloist_queue_depth") == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_leaving_frees_the_engine(stack: GatewayStack, phase: str, stream: bool) -> None:
    prefill = Script(text="x", prefill_events=200, prefill_delay_s=0.02)
    stack.engine.script = prefill if phase == "prefill" else SLOW
    before = stack.metric("soloist_requests_cancelled_total", soloist_phase=phase)
    request = RawRequest(stack.port, body(stream=stream))
    wait_until(lambda: stack.engine.seen, "the engine to run")
    if phase == "decode":
        wait_until(lambda: stack.engine.seen[0].emitted > 5, "tokens")
    request.leave()
    wait_until(lambda: stack.engine.seen[0].end == "cancelled", "the engine to hear of it", timeout_s=1.0)
    assert stack.engine.seen[0].emitted < 200
    lane_is_free(stack)
    assert stack.metric("soloist_requests_cancelled_total", soloist_phase=phase) == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_queued_client_that_leaves_is_never_run(stack: GatewayStack, stream: bool) -> None:
    stack.engine.script = Script(text="word " * 60, token_delay_s=0.01)
    before = stack.metric("soloist_requests_cancelled_total", soloist_phase="queued")
    with RawRequest(stack.port, body(stream=True)) as running:
        running.read_until(b"word")
        queued = RawRequest(stack.port, body(stream=stream))
        wait_until(lambda: stack.metric("soloist_queue_depth") == 1, "the second to queue")
        queued.leave()
        wait_until(lambda: stack.metric("soloist_queue_depth") == 0, "the queue to be empty", timeout_s=1.0)
        assert running.read_all().count(b"[DONE]") == 1
    assert len(stack.engine.seen) == 1 and stack.engine.seen[0].end == "stop"
    lane_is_free(stack)
    assert stack.metric("soloist_requests_cancelled_total", soloist_phase="queued") == before + 1


def test_leaving_at_the_moment_of_dequeue(stack: GatewayStack) -> None:
    """Around the end of the running request: wherever the close falls, the lane is free afterwards."""
    for offset_s in (0.0, 0.02, 0.05, 0.08, 0.11, 0.14):
        stack.engine.script = Script(text="word " * 10, token_delay_s=0.01)
        with RawRequest(stack.port, body(stream=True)) as running:
            running.read_until(b"assistant")
            queued = RawRequest(stack.port, body(stream=True))
            time.sleep(offset_s)
            queued.leave()
            assert running.read_all().count(b"[DONE]") == 1
        lane_is_free(stack)


def test_leaving_while_the_prompt_is_tokenised(stack: GatewayStack) -> None:
    request = RawRequest(stack.port, {"model": "m", "messages": [{"role": "user", "content": "word " * 300_000}]})
    time.sleep(0.05)
    request.leave()
    lane_is_free(stack)


def test_leaving_before_the_body_is_complete(stack: GatewayStack) -> None:
    request = RawRequest(stack.port, {"x": 1}, headers={"content-length": "100000"})
    time.sleep(0.05)
    request.leave()
    lane_is_free(stack)


def test_a_client_that_stops_reading_is_gone_after_the_stall_limit(stack: GatewayStack) -> None:
    stack.engine.script = Script(text="0" * 4000, tokens_per_event=20, token_delay_s=0.005)
    verbose = body(stream=True) | {"logprobs": True, "top_logprobs": 20}
    before = stack.metric("soloist_requests_cancelled_total", soloist_phase="decode")
    with RawRequest(stack.port, verbose, receive_bytes=4096) as request:
        request.read_until(b"assistant")
        gone = before + 1
        wait_until(
            lambda: stack.metric("soloist_requests_cancelled_total", soloist_phase="decode") == gone, "the limit"
        )
        lane_is_free(stack)
