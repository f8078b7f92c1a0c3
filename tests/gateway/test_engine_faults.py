"""An engine that dies, refuses, stalls, lies or is away: a typed error or a clean recovery, and never a lost lane."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.engine_info import Readiness
from contracts.generate import Failed
from contracts.model_folder import MANIFEST_NAME
from support.gateway_stack import GatewayStack, RawRequest, parse_events, wait_until
from support.redis_server import RedisServer
from support.scripted_engine import Script
from support.text_model import make_model_folder

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = BODY | {"stream": True}


@pytest.fixture
def own_stack(home: Path, redis: RedisServer) -> Iterator[GatewayStack]:
    """A stack that a test may break."""
    with GatewayStack(home, redis.url) as stack:
        yield stack


def last_error(stack: GatewayStack, script: Script) -> tuple[str, dict[str, Any]]:
    """The body of a stream that failed after its first byte, and its error."""
    stack.engine.next_scripts = [script]
    reply = stack.post(STREAM)
    assert reply.status_code == 200
    events = parse_events(reply.text)
    assert "[DONE]" not in events
    assert not any(choice["finish_reason"] for event in events[:-1] for choice in event["choices"])
    assert events[-1]["request_id"] == reply.headers["x-request-id"]
    return reply.text, events[-1]["error"]


@pytest.mark.parametrize("fault", [Script(drop_after=3), Script(die_after=3), Script(garbage_after=3)])
def test_engine_lost_after_tokens(stack: GatewayStack, fault: Script) -> None:
    script = msgspec.structs.replace(fault, text="one two three four", token_delay_s=0.01)
    text, error = last_error(stack, script)
    assert (error["code"], error["type"]) == ("engine_lost", "server_error") and "surprise" not in text
    stack.wait_ready()
    stack.engine.next_scripts = [script]
    reply = stack.post(BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_lost")
    assert int(reply.headers["retry-after"]) >= 1
    stack.wait_ready()
    assert stack.ask().status_code == 200


def test_the_engines_own_failures_keep_their_code(stack: GatewayStack) -> None:
    for code, status in (("numerical_error", 500), ("out_of_memory", 503)):
        failed = Failed(code, "logits of position 9 are not finite", False)
        _, error = last_error(stack, Script(text="one two", fail=failed, fail_after=2))
        assert (error["code"], error["message"]) == (code, failed.message)
        stack.engine.next_scripts = [Script(fail=failed)]
        reply = stack.post(BODY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert stack.ask().status_code == 200


def test_an_unknown_failure_stays_in_the_log(stack: GatewayStack) -> None:
    text, error = last_error(stack, Script(text="one two", fail=Failed("engine_error", "boom", False), fail_after=2))
    assert error["code"] == "internal_error" and "boom" not in text
    assert stack.ask().status_code == 200


def test_a_refusal_before_the_first_event_is_plain_http(stack: GatewayStack) -> None:
    stack.engine.next_scripts = [Script(refuse=Failed("invalid_request", "too long", False), refuse_status=400)]
    reply = stack.post(STREAM)
    assert reply.status_code == 400 and reply.headers["content-type"] == "application/json"
    assert reply.json()["error"]["message"] == "too long"


@pytest.mark.parametrize("code", ["engine_busy", "engine_loading"])
def test_a_busy_engine_is_asked_again(stack: GatewayStack, code: str) -> None:
    stack.engine.next_scripts = [Script(refuse=Failed(code, "busy", True), refuse_status=409)] * 3
    stack.engine.script = Script(text="at last")
    assert stack.post(BODY).json()["choices"][0]["message"]["content"] == "at last"
    assert len(stack.engine.seen) == 1


def test_an_engine_that_stays_busy_is_a_503(stack: GatewayStack) -> None:
    stack.engine.script = Script(refuse=Failed("engine_busy", "one runs and one waits", True), refuse_status=409)
    reply = stack.post(BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_busy")
    stack.engine.script = Script()
    assert stack.ask().status_code == 200


def test_a_stale_fence_is_overtaken(stack: GatewayStack) -> None:
    """As after a restored Redis backup: the engine has seen fences above ours."""
    assert stack.ask().status_code == 200
    epoch, number = stack.engine.info.fence or stack.engine.seen[0].request.fence or (0, 0)
    stack.engine._fence = (epoch + 5, number)
    reply = stack.ask()
    assert reply.status_code == 200
    fence = stack.engine.seen[-1].request.fence
    assert fence is not None and fence > (epoch + 5, number)


def test_lost_before_the_first_token_is_tried_again(stack: GatewayStack) -> None:
    """Nothing was shown, so the same request (same seed) simply runs again."""
    stack.engine.next_scripts = [Script(prefill_events=2, drop_after=0), Script(text="second")]
    assert stack.post(BODY).json()["choices"][0]["message"]["content"] == "second"
    first, second = (seen.request for seen in stack.engine.seen)
    assert first.sampling == second.sampling and first.token_ids == second.token_ids
    assert first.request_id != second.request_id


def test_an_engine_that_shuts_down_is_lost_or_waited_for(stack: GatewayStack) -> None:
    stopping = Failed("shutting_down", "the engine is shutting down", True)
    _, error = last_error(stack, Script(text="one two", fail=stopping, fail_after=2))
    assert (error["code"], error["message"]) == ("engine_lost", stopping.message)
    stack.wait_ready()
    stack.engine.next_scripts = [Script(refuse=stopping), Script(fail=stopping), Script(text="again")]
    assert stack.post(BODY).json()["choices"][0]["message"]["content"] == "again"


def test_preempted_by_another_gateway(stack: GatewayStack) -> None:
    _, error = last_error(stack, Script(text="one two", finish="preempted"))
    assert error["code"] == "stale_lease"


def test_a_silent_engine_counts_as_lost(stack: GatewayStack) -> None:
    started_s = time.monotonic()
    _, error = last_error(stack, Script(text="one two", stall_after=2))
    assert error["code"] == "engine_lost" and "silent" in error["message"]
    assert time.monotonic() - started_s < 5.0


def test_keep_alive_while_queued_and_in_prefill(stack: GatewayStack) -> None:
    stack.engine.script = Script(text="x", prefill_events=2, prefill_delay_s=0.5, accept_delay_s=0.4)
    with RawRequest(stack.port, STREAM) as first, RawRequest(stack.port, STREAM) as second:
        started_s = time.monotonic()
        second.read_until(b": keep-alive")  # queued behind the first, or the other way round
        first.read_until(b": keep-alive")
        assert time.monotonic() - started_s < 1.0, "headers and a first byte come at once"
        for request in (first, second):
            received = request.read_all()
            assert received.count(b": keep-alive\n\n") >= 4 and received.count(b"[DONE]") == 1
            assert received.index(b": keep-alive") < received.index(b'"role"')


def test_an_engine_that_is_away(own_stack: GatewayStack) -> None:
    own_stack.engine_server.stop()
    wait_until(lambda: own_stack.client.get("/health/ready").status_code == 503, "readiness to fall")
    reasons = own_stack.client.get("/health/ready").json()["reasons"]
    assert len(reasons) == 1 and "cannot be reached: connection refused" in reasons[0]
    for body in (BODY, STREAM):
        reply = own_stack.post(body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_lost")
        assert int(reply.headers["retry-after"]) >= 1 and reply.headers["content-type"] == "application/json"
    assert own_stack.client.get("/health/live").status_code == 200
    assert own_stack.client.get("/v1/models").status_code == 200, "the window is still known"
    own_stack.engine_server.start()
    assert own_stack.ask().status_code == 200, "a request finds the engine without waiting for the next poll"


def test_an_engine_that_loads(own_stack: GatewayStack) -> None:
    own_stack.engine.readiness = Readiness("loading", 0.25, "weights")
    wait_until(lambda: own_stack.client.get("/health/ready").status_code == 503, "readiness to fall")
    assert "loading: weights (25% done)" in own_stack.client.get("/health/ready").text
    reply = own_stack.ask()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_loading")
    own_stack.engine.readiness = Readiness("ready", 1.0)
    assert own_stack.ask().status_code == 200


def test_another_tokenizer_in_the_engine(home: Path, redis: RedisServer, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path)
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes() + b"\n")
    with GatewayStack(home, redis.url) as stack:
        stack.engine.info = type(stack.engine)(folder).info
        wait_until(lambda: stack.client.get("/health/ready").status_code == 503, "the mismatch to be seen")
        assert "with tokenizer" in stack.client.get("/health/ready").text
        assert stack.ask().status_code == 503


def test_a_model_that_is_still_being_fetched(home: Path, redis: RedisServer) -> None:
    """The gateway starts without the folder and turns ready when the fetch is complete."""
    manifest = home / "models" / "tiny-text" / MANIFEST_NAME
    stack = GatewayStack(home, redis.url)
    hidden = manifest.with_suffix(".part")
    manifest.rename(hidden)
    try:
        stack.engine_server.start()
        stack.start_gateway()
        wait_until(lambda: "./soloist fetch tiny-text" in stack.client.get("/health/ready").text, "the reason")
        assert stack.ask().status_code == 503
        assert stack.client.get("/v1/models").status_code == 503
    finally:
        hidden.rename(manifest)
    try:
        assert stack.ask().status_code == 200
    finally:
        stack.stop()
