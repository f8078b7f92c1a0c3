"""The queue from outside: turns, a full queue, a lost lease, and a Redis that dies under a running reply."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from contracts.observability import start_telemetry
from gateway.turnstile import Turnstile, TurnstileLimits
from gateway.turnstile.model import LostReason
from support.gateway_stack import GatewayStack, RawRequest, join_content, parse_events, wait_until
from support.redis_server import RedisServer
from support.scripted_engine import Script

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = BODY | {"stream": True}


def test_the_queue_is_full(home: Path, redis: RedisServer) -> None:
    with GatewayStack(home, redis.url, GATEWAY_QUEUE_LIMIT="2") as stack:
        stack.engine.script = Script(text="word " * 30, token_delay_s=0.02)
        with RawRequest(stack.port, STREAM) as running:
            running.read_until(b"word")
            with RawRequest(stack.port, STREAM) as second, RawRequest(stack.port, STREAM) as third:
                second.read_until(b": keep-alive")
                third.read_until(b": keep-alive")
                for body in (BODY, STREAM):
                    reply = stack.post(body)
                    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_is_overloaded")
                    assert int(reply.headers["retry-after"]) >= 1
                assert [request.read_all().count(b"[DONE]") for request in (running, second, third)] == [1, 1, 1]
        assert stack.ask().status_code == 200


def test_agents_take_turns(stack: GatewayStack) -> None:
    """One agent with five requests in the queue does not keep another waiting for all of them."""
    stack.engine.script = Script(text="word " * 10, token_delay_s=0.01)
    order: list[str] = []

    def ask(agent: str) -> None:
        with httpx.Client(base_url=stack.url, timeout=20) as client:
            reply = client.post("/v1/chat/completions", json=BODY, headers={"x-soloist-agent": agent})
            assert reply.status_code == 200
            order.append(agent)

    threads = [threading.Thread(target=ask, args=(agent,)) for agent in ["greedy"] * 5 + ["modest"]]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert order.index("modest") <= 2, order


def test_redis_dies_under_a_running_reply(home: Path, redis: RedisServer) -> None:
    with GatewayStack(home, redis.url) as stack:
        stack.engine.script = Script(text="word " * 100, token_delay_s=0.02)
        with RawRequest(stack.port, STREAM) as running:
            running.read_until(b"word")
            redis.kill()
            wait_until(lambda: stack.client.get("/health/ready").status_code == 503, "readiness to fall")
            assert "Redis" in stack.client.get("/health/ready").text
            for body in (BODY, STREAM):
                reply = stack.post(body)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_is_overloaded")
                assert int(reply.headers["retry-after"]) >= 1
            received = running.read_all()
            assert received.count(b"[DONE]") == 1 and received.count(b"word") == 100
        redis.start()
        stack.wait_ready()
        stack.engine.script = Script(text="back")
        wait_until(lambda: stack.ask().status_code == 200, "the queue to work again")


@pytest.mark.parametrize(("reason", "last"), [("superseded", "stale_lease"), ("unreachable", "[DONE]")])
def test_a_lost_lease(home: Path, redis: RedisServer, reason: LostReason, last: str) -> None:
    """Another ticket holds the lane: the reply ends. The store is merely away: the reply goes on."""
    stack = GatewayStack(home, redis.url)
    stack.engine_server.start()
    turnstile = Turnstile(redis.url, TurnstileLimits(), (stack.engine_server.url,), start_telemetry("test", "0", None))
    stack.start_gateway(turnstile)
    try:
        stack.wait_ready()
        stack.engine.script = Script(text="word " * 40, token_delay_s=0.02)
        with RawRequest(stack.port, STREAM) as running:
            running.read_until(b"word")
            (ticket,) = turnstile._roster.all_tickets()
            ticket._outcome.get_loop().call_soon_threadsafe(turnstile._roster.lose, ticket.ticket_id, reason)
            events = running.read_events()
        assert events[-1] == last or events[-1]["error"]["code"] == last
        wait_until(lambda: stack.engine.active == 0, "the engine to be free", timeout_s=1.0)
    finally:
        stack.stop()


def test_preempted_in_the_engine(stack: GatewayStack) -> None:
    """A higher fence reached the engine: it pauses ours, and the client is told."""
    stack.engine.script = Script(text="word " * 400, token_delay_s=0.02)
    with RawRequest(stack.port, STREAM) as running:
        running.read_until(b"word")
        stack.engine.preempt()
        assert running.read_events()[-1]["error"]["code"] == "stale_lease"
    stack.reset()
    assert stack.ask().status_code == 200


def test_two_gateways_share_one_engine(home: Path, redis: RedisServer) -> None:
    with GatewayStack(home, redis.url) as first:
        second = GatewayStack(home, redis.url)
        second.engine_server = first.engine_server
        second.start_gateway()
        try:
            second.wait_ready()
            first.engine.script = Script(text="word " * 5, token_delay_s=0.01)
            replies: list[httpx.Response] = []

            def ask(url: str) -> None:
                replies.append(httpx.post(f"{url}/v1/chat/completions", json=STREAM))

            threads = [threading.Thread(target=ask, args=(stack.url,)) for stack in (first, second) * 3]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [join_content(parse_events(reply.text)) for reply in replies] == ["word " * 5] * 6
            fences = [seen.request.fence or (0, 0) for seen in first.engine.seen]
            assert fences == sorted(set(fences)) and len(fences) == 6, "one at a time, none twice"
        finally:
            second.stop_gateway()


def test_gateways_with_different_engines_must_not_share_a_store(home: Path, redis: RedisServer) -> None:
    """A lane of the other's engine is given back with the reason instead of running on the wrong one."""
    stack = GatewayStack(home, redis.url)
    stack.engine_server.start()
    stack.start_gateway(Turnstile(redis.url, TurnstileLimits(), ("other",), start_telemetry("test", "0", None)))
    try:
        stack.wait_ready()
        reply = stack.ask()
        assert reply.status_code == 503 and "same GATEWAY_ENGINE_URL" in reply.json()["error"]["message"]
        assert stack.engine.seen == []
    finally:
        stack.stop()


def test_a_store_that_refuses_writes_is_quoted(
    home: Path, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when it never was healthy; readiness and refusals say the same, the log says it once."""
    with Redis.from_url(redis.url) as store:
        store.config_set("min-replicas-to-write", 1)
        stack = GatewayStack(home, redis.url)
        stack.engine_server.start()
        stack.start_gateway()
        try:
            wait_until(lambda: len(stack.client.get("/health/ready").json()["reasons"]) == 1, "the engine to be known")
            ready = stack.client.get("/health/ready").json()
            words = ready["message"]
            assert words.startswith("the queue store refuses writes: ") and "NOREPLICAS" in words
            assert ready["reasons"] == [words]
            assert "NOREPLICAS" in stack.ask().json()["error"]["message"]
            time.sleep(0.5)
            assert sum("NOREPLICAS" in message for message in caplog.messages) == 1
            store.config_set("min-replicas-to-write", 0)
            stack.wait_ready()
            store.config_set("min-replicas-to-write", 1)
            reply = stack.ask()
            assert reply.status_code == 503 and "NOREPLICAS" in reply.json()["error"]["message"]
        finally:
            stack.stop()
