"""Our own bugs: one log entry with its trace, one answer in the API's shape without it, and the lane stays free."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.observability import start_telemetry
from gateway.text.reply_text import ReplyText
from gateway.turnstile import Ticket, TicketEntry, Turnstile, TurnstileLimits
from support.gateway_stack import GatewayStack, RawRequest, wait_until
from support.redis_server import RedisServer
from support.scripted_engine import Script


class BrokenTurnstile(Turnstile):
    """Breaks once, then works."""

    broken = True

    async def enqueue(self, entry: TicketEntry) -> Ticket:
        if self.broken:
            raise RuntimeError("the secret of the queue")
        return await super().enqueue(entry)


@pytest.fixture
def broken(home: Path, redis: RedisServer) -> Iterator[tuple[GatewayStack, BrokenTurnstile]]:
    stack = GatewayStack(home, redis.url)
    stack.engine_server.start()
    lanes = (stack.engine_server.url,)
    turnstile = BrokenTurnstile(redis.url, TurnstileLimits(), lanes, start_telemetry("test", "0", None))
    stack.start_gateway(turnstile)
    stack.wait_ready()
    yield stack, turnstile
    stack.stop()


def bugs(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log entries with a trace; written after the answer, so waited for."""
    wait_until(lambda: any(record.exc_info for record in caplog.records), "the log")
    return [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_is_a_plain_500(
    broken: tuple[GatewayStack, BrokenTurnstile], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    stack, turnstile = broken
    reply = stack.ask(stream=stream)
    assert reply.status_code == 500 and reply.headers["content-type"] == "application/json"
    error: dict[str, Any] = reply.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "secret" not in reply.text and "Traceback" not in reply.text
    assert reply.headers["x-request-id"] in error["message"]
    entries = bugs(caplog)
    assert len(entries) == 1 and reply.headers["x-request-id"] in entries[0]
    turnstile.broken = False
    assert stack.ask(stream=stream).status_code == 200


def test_a_bug_in_mid_stream_closes_it_and_frees_the_lane(
    stack: GatewayStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack.engine.script = Script(text="one two three", token_delay_s=0.02)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with RawRequest(stack.port, body) as request:
        request.read_until(b"assistant")
        monkeypatch.setattr(ReplyText, "feed", lambda *_: 1 / 0)
        assert b"[DONE]" not in request.read_all()
    monkeypatch.undo()
    wait_until(lambda: stack.engine.active == 0, "the engine to be free", timeout_s=2.0)
    assert len(bugs(caplog)) == 1
    assert stack.ask().status_code == 200
