"""One request is one trace over gateway and engine, with the right parents; without an endpoint nothing is exported."""

from pathlib import Path
from typing import Any

import pytest

from contracts import telemetry as names
from support.gateway_stack import GatewayStack, RawRequest, wait_until
from support.otlp_receiver import OtlpReceiver, ReceivedSpan
from support.redis_server import RedisServer
from support.scripted_engine import Script

BODY: dict[str, Any] = {"model": "local", "messages": [{"role": "user", "content": "hi"}], "seed": 7}
CHAT = "chat tiny-text"
SERVER = "POST /v1/chat/completions"
SERVER_KIND, CLIENT_KIND, INTERNAL_KIND = 2, 3, 1
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def by_name(spans: list[ReceivedSpan], trace_id: str) -> dict[str, ReceivedSpan]:
    mine = [span for span in spans if span.trace_id == trace_id]
    assert len({span.name for span in mine}) == len(mine), [span.name for span in mine]
    return {span.name: span for span in mine}


def test_one_request_one_trace(home: Path, redis: RedisServer) -> None:
    with OtlpReceiver() as receiver:
        with GatewayStack(home, redis.url, otlp=receiver.endpoint) as stack:
            stack.engine.script = Script(text="one two", cached_tokens=2, token_delay_s=0.005)
            parent = f"00-{TRACE_ID}-b7ad6b7169203331-01"
            reply = stack.post(BODY, {"traceparent": parent, "x-soloist-agent": "claude"})
            assert reply.status_code == 200
        spans = by_name(receiver.wait_for({SERVER, names.SPAN_GENERATE}), TRACE_ID)
    parents = {
        SERVER: None,
        names.SPAN_ADMIT: SERVER,
        names.SPAN_TOKENIZE: names.SPAN_ADMIT,
        names.SPAN_QUEUE_WAIT: SERVER,
        CHAT: SERVER,
        names.SPAN_GENERATE: CHAT,
        names.SPAN_PREFILL: names.SPAN_GENERATE,
        names.SPAN_DECODE: names.SPAN_GENERATE,
    }
    assert set(spans) == set(parents)
    for name, parent_name in parents.items():
        expected = "b7ad6b7169203331" if parent_name is None else spans[parent_name].span_id
        assert spans[name].parent_id == expected, name
        assert spans[name].start_ns <= spans[name].end_ns and not spans[name].error
    assert {spans[name].service for name in (SERVER, CHAT)} == {"soloist-gateway"}
    assert spans[names.SPAN_GENERATE].service == "soloist-engine"
    kinds = [spans[name].kind for name in (SERVER, CHAT, names.SPAN_ADMIT, names.SPAN_GENERATE)]
    assert kinds == [SERVER_KIND, CLIENT_KIND, INTERNAL_KIND, SERVER_KIND]
    order = [
        spans[name].start_ns for name in (SERVER, names.SPAN_ADMIT, names.SPAN_QUEUE_WAIT, CHAT, names.SPAN_DECODE)
    ]
    assert order == sorted(order)
    chat, server = spans[CHAT].attributes, spans[SERVER].attributes
    assert chat[names.GEN_AI_OPERATION] == "chat" and chat[names.GEN_AI_PROVIDER] == "soloist"
    assert chat[names.GEN_AI_REQUEST_MODEL] == "local" and chat[names.GEN_AI_REQUEST_SEED] == 7
    assert chat[names.GEN_AI_USAGE_INPUT_TOKENS] == reply.json()["usage"]["prompt_tokens"]
    assert chat[names.GEN_AI_USAGE_CACHE_READ] == 2 and chat[names.GEN_AI_RESPONSE_FINISH_REASONS] == ["stop"]
    assert chat[names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] > 0
    assert server[names.REQUEST_ID] == reply.headers["x-request-id"] and server[names.HTTP_STATUS] == 200
    assert server[names.AGENT] == "claude" and server[names.OUTCOME] == "stop"
    assert "hi" not in str([span.attributes for span in spans.values()]).split("'")


def test_each_way_to_end_is_on_the_span(home: Path, redis: RedisServer) -> None:
    with OtlpReceiver() as receiver:
        with GatewayStack(home, redis.url, otlp=receiver.endpoint) as stack:
            ids = [
                stack.post(BODY | {"n": 2}).headers["x-request-id"],
                _lost(stack).headers["x-request-id"],
            ]
            stack.engine.script = Script(text="word " * 100, token_delay_s=0.01)
            with RawRequest(stack.port, BODY) as leaver:
                wait_until(lambda: any(seen.emitted > 3 for seen in stack.engine.seen), "tokens")
                leaver.leave()
            wait_until(lambda: stack.engine.active == 0, "the engine to stop")
            stack.client.get("/health/ready")
        spans = receiver.wait_for({SERVER})
    servers = {span.attributes[names.REQUEST_ID]: span for span in spans if span.name == SERVER}
    assert len(servers) == 3, "polls of health and metrics are not traced"
    rejected, lost = (servers.pop(request_id) for request_id in ids)
    assert rejected.attributes[names.OUTCOME] == "rejected"
    assert rejected.attributes[names.ERROR_TYPE] == "n_not_supported"
    assert lost.error and lost.attributes[names.ERROR_TYPE] == "engine_lost"
    (left,) = servers.values()
    assert left.attributes[names.OUTCOME] == "cancelled" and not left.error


def _lost(stack: GatewayStack) -> Any:
    stack.engine.next_scripts = [Script(text="one two three", drop_after=2, token_delay_s=0.005)]
    reply = stack.post(BODY)
    assert reply.status_code == 503
    stack.wait_ready()
    return reply


def test_a_collector_that_is_away_harms_nobody(
    home: Path, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    with GatewayStack(home, redis.url, otlp="http://127.0.0.1:1") as stack:
        assert stack.ask().status_code == 200


def test_without_an_endpoint_spans_are_free(stack: GatewayStack) -> None:
    reply = stack.post(BODY, {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"})
    assert reply.status_code == 200
    assert TRACE_ID in stack.engine.seen[0].headers["traceparent"], "a caller's trace still reaches the engine"


def test_metrics_of_one_request(home: Path, redis: RedisServer) -> None:
    with GatewayStack(home, redis.url) as stack:
        stack.engine.script = Script(text="one two three", cached_tokens=4, token_delay_s=0.002)
        usage = stack.ask().json()["usage"]
        wait_until(lambda: stack.metric("soloist_gateway_overhead_seconds_count") == 1, "the booking")
        for kind, count in (
            ("output", usage["completion_tokens"]),
            ("input_cached", 4),
            ("input_computed", usage["prompt_tokens"] - 4),
        ):
            assert stack.metric("soloist_tokens_total", soloist_token_kind=kind) == count
        assert stack.metric("soloist_admission_requests_total", soloist_outcome="admitted") == 1
        for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
            assert stack.metric(f"gen_ai_server_{name}_seconds_count") == 1, name
        assert stack.metric("soloist_tokenize_duration_seconds_count") == 1
        assert stack.metric("soloist_queue_depth") == 0
        assert stack.metric("soloist_gateway_overhead_seconds_sum") < 1.0
