"""The engine over HTTP: the stream, refusals with their status, disconnects, loading and draining, metrics, traces."""

import socket
import time
from itertools import pairwise
from typing import Any

import pytest

from contracts import telemetry as names
from contracts.codec import encode
from contracts.generate import (
    Accepted,
    CancelRequest,
    Failed,
    Finished,
    Prefill,
    Tokens,
)
from engine.model.decoder import Decoder
from engine.server.lifecycle import Lifecycle, Stopped
from support.engine_http import EngineCall, call
from support.otlp_receiver import OtlpReceiver
from support.served_engine import MAX_BODY_BYTES, Serve, Served
from support.tiny_engine import TINY, make_request

NO_STOP = {"logit_bias": {0: -100.0, 2: -100.0}}
PROMPT = [(17 * i) % TINY.vocab_size for i in range(100)]
LONG = 900
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def long_call(served: Served, request_id: str = "long", **fields: object) -> EngineCall:
    return EngineCall(served.port, make_request([5], LONG, request_id, sampling=NO_STOP, **fields))


def is_idle(served: Served) -> bool:
    with EngineCall(served.port, make_request([5, 6], 1, "probe")) as probe:
        probe.read_to_end()
        with EngineCall(served.port, make_request([5, 6], 1, "probe2")) as again:
            again.read_to_end()
            finished = again.events[-1]
            return isinstance(finished, Finished) and finished.timings.queue_ms < 500


def test_a_stream_is_one_event_a_line_to_the_terminal_one(served: Served) -> None:
    with EngineCall(served.port, make_request(PROMPT, 6, sampling=NO_STOP)) as generation:
        events = generation.read_to_end()
        assert generation.response.headers["content-type"] == "application/x-ndjson"
    assert isinstance(events[0], Accepted) and isinstance(events[1], Prefill)
    assert sum(len(event.ids) for event in events if isinstance(event, Tokens)) == 6
    assert isinstance(events[-1], Finished) and sum(isinstance(e, Finished | Failed) for e in events) == 1


def test_tokens_arrive_while_the_request_runs(served: Served) -> None:
    with long_call(served) as generation:
        generation.wait_for(Tokens)
        status, _ = call(served.port, "POST", "/v1/requests/long/cancel", encode(CancelRequest("client")))
        assert status == 200
        finished = generation.read_to_end()[-1]
    assert isinstance(finished, Finished) and finished.reason == "cancelled"
    assert finished.usage.completion_tokens < LONG


@pytest.mark.parametrize(
    ("body", "status", "code", "text"),
    [
        (b"{", 400, "invalid_request", "not valid JSON"),
        (b"[]", 400, "invalid_request", "Expected `object`"),
        (b"\xff\xfe", 400, "invalid_request", ""),
        (b"[" * 10_000, 400, "invalid_request", ""),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":0}', 400, "invalid_request", ">= 1"),
        (b'{"request_id":"r","token_ids":[],"max_new_tokens":1}', 400, "invalid_request", "length >= 1"),
        (b'{"request_id":"r","token_ids":["1"],"max_new_tokens":1}', 400, "invalid_request", "Expected `int`"),
        (b'{"request_id":"r","token_ids":[1,999],"max_new_tokens":1}', 400, "invalid_request", "token_ids[1] is 999"),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":1,"x":1}', 400, "invalid_request", "unknown field `x`"),
        (b" " * (MAX_BODY_BYTES + 1), 413, "request_too_large", str(MAX_BODY_BYTES)),
        (encode(make_request([5] * 1024, 1)), 400, "context_length_exceeded", "1024 tokens, the context limit is 1024"),
    ],
)
def test_bad_requests_are_refused_before_the_stream(
    served: Served, body: bytes, status: int, code: str, text: str
) -> None:
    with EngineCall(served.port, body) as generation:
        got_status, failed = generation.refusal()
    assert (got_status, failed.code) == (status, code) and text in failed.message
    assert is_idle(served)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/generate", 405),
        ("POST", "/v1/info", 405),
        ("POST", "/v1/requests/x/cancel", 404),
    ],
)
def test_unknown_routes_and_methods_answer_in_json(served: Served, method: str, path: str, status: int) -> None:
    got_status, body = call(served.port, method, path, encode(CancelRequest("client")) if method == "POST" else None)
    assert got_status == status and body["code"] in ("not_found", "invalid_request") and body["retryable"] is False


def test_conflicts_are_409(served: Served) -> None:
    with long_call(served, "a", fence=(3, 0)) as running, long_call(served, "b") as waiting:
        running.wait_for(Tokens)
        assert waiting.response.status == 200, "a waiting request has its stream open"
        for request, code in (
            (make_request([5], 1, "c"), "engine_busy"), (make_request([5], 1, "d", fence=(2, 9)), "stale_lease"),
        ):  # fmt: skip
            with EngineCall(served.port, request) as refused:
                status, failed = refused.refusal()
                assert (status, failed.code) == (409, code)
        body = encode(CancelRequest("client", fence=(2, 0)))
        status, answer = call(served.port, "POST", "/v1/requests/a/cancel", body)
        assert (status, answer["code"]) == (409, "stale_lease")


@pytest.mark.parametrize("phase", [Prefill, Tokens])
def test_closing_the_connection_frees_the_lane_and_keeps_the_state(served: Served, phase: type) -> None:
    with EngineCall(served.port, make_request([7] * 200, 800, "gone", sampling=NO_STOP)) as generation:
        generation.wait_for(phase)
    with EngineCall(served.port, make_request([7] * 200, 1, "next")) as following:
        finished = following.read_to_end()[-1]
    assert isinstance(finished, Finished) and finished.timings.queue_ms < 2000
    assert finished.usage.cached_tokens >= 64


def test_a_client_that_leaves_the_queue_is_forgotten(served: Served) -> None:
    with long_call(served, "a") as running:
        running.wait_for(Tokens)
        with long_call(served, "b") as waiting:
            assert waiting.response.status == 200
        deadline_s = time.monotonic() + 5
        while True:
            with EngineCall(served.port, make_request([5], 1, "c")) as other:
                if other.response.status == 200:
                    break
            assert time.monotonic() < deadline_s, "the place in the queue was not freed"


def test_half_a_request_disturbs_nobody(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    assert is_idle(served)


def test_loading_answers_with_progress(serve: Serve) -> None:
    served = serve(ready=False)
    served.lifecycle.set_progress(0.25)
    assert call(served.port, "GET", "/health/live") == (200, {"status": "alive"})
    assert call(served.port, "GET", "/health/ready") == (503, {"status": "loading", "progress": 0.25, "message": None})
    for method, path in (("GET", "/v1/info"), ("POST", "/v1/generate"), ("POST", "/v1/requests/x/cancel")):
        status, body = call(served.port, method, path, b"{}" if method == "POST" else None)
        assert (status, body["code"], body["retryable"]) == (503, "engine_loading", True)
    assert call(served.port, "GET", "/metrics")[0] == 200
    served.lifecycle.set_ready(served.engine)
    assert call(served.port, "GET", "/health/ready")[0] == 200


def test_draining_ends_streams_and_refuses_new_ones(served: Served) -> None:
    with long_call(served, "a") as running, long_call(served, "b") as waiting:
        running.wait_for(Tokens)
        assert waiting.response.status == 200
        served.lifecycle.drain()
        for generation in (running, waiting):
            failed = generation.read_to_end()[-1]
            assert isinstance(failed, Failed) and (failed.code, failed.retryable) == ("shutting_down", True)
        with EngineCall(served.port, make_request([5], 1, "c")) as late:
            status, refusal = late.refusal()
            assert (status, refusal.code) == (503, "shutting_down") and late.response.headers["retry-after"] == "2"
    assert call(served.port, "GET", "/health/ready")[1]["status"] == "draining"


def test_a_drain_stops_the_loader() -> None:
    lifecycle = Lifecycle()
    lifecycle.set_progress(0.1)
    lifecycle.drain()
    with pytest.raises(Stopped):
        lifecycle.set_progress(0.2)


def test_info_shows_plan_fence_and_rates(served: Served) -> None:
    with EngineCall(served.port, make_request(PROMPT, 20, fence=(4, 2), sampling=NO_STOP)) as generation:
        generation.read_to_end()
    status, info = call(served.port, "GET", "/v1/info")
    assert status == 200 and info["model_id"] == TINY.name and info["executor"] == "reference-cpu"
    assert (info["context_limit"], info["vocab_size"], info["kv_format"]) == (1024, TINY.vocab_size, "bf16")
    assert info["fence"] == [4, 2] and info["rates"]["decode_tok_s"] > 0
    regions = {region["name"]: region["bytes"] for region in info["memory"]["regions"]}
    assert sum(regions.values()) == info["memory"]["total_bytes"]
    assert {"kv.keys", "kv.values", "expanded.layers", "expanded.head", "weights.mlp"} <= set(regions)


def test_metrics_count_tokens_phases_and_disconnects(served: Served) -> None:
    with EngineCall(served.port, make_request(PROMPT, 5, "a", sampling=NO_STOP)) as generation:
        generation.read_to_end()
    with long_call(served, "b") as gone:
        gone.wait_for(Tokens)
    assert is_idle(served)
    _, page = call(served.port, "GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(values['soloist_tokens_total{soloist_token_kind="input_computed"}']) >= 101
    assert float(values['soloist_tokens_total{soloist_token_kind="output"}']) >= 6
    assert float(values['soloist_engine_busy_seconds_total{soloist_phase="decode"}']) > 0
    assert float(values['soloist_requests_cancelled_total{soloist_phase="decode"}']) == 1
    assert float(values["soloist_requests_active"]) == 0
    assert float(values["soloist_context_limit"]) == 1024
    assert any(name.startswith("soloist_memory_planned_bytes{") for name in values)


def test_a_request_is_a_server_span_with_its_phases(serve: Serve) -> None:
    with OtlpReceiver() as receiver:
        served = serve(otlp_endpoint=receiver.endpoint)
        headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
        with EngineCall(served.port, make_request(PROMPT, 5, "traced", fence=(1, 2), sampling=NO_STOP), headers) as one:
            one.read_to_end()
        spans = {span.name: span for span in receiver.wait_for({names.SPAN_GENERATE, names.SPAN_DECODE})}
    generate = spans[names.SPAN_GENERATE]
    assert (generate.trace_id, generate.parent_id, generate.kind) == (TRACE_ID, SPAN_ID, 2)
    assert generate.attributes[names.REQUEST_ID] == "traced" and generate.attributes[names.TOKENS_PROMPT] == 100
    assert generate.attributes[names.OUTCOME] == "length" and generate.attributes[names.FENCE_NUMBER] == 2
    assert generate.attributes[names.TOKENS_COMPUTED] == 100
    for name in (names.SPAN_PREFILL, names.SPAN_DECODE):
        assert (spans[name].trace_id, spans[name].parent_id) == (TRACE_ID, generate.span_id)
        assert generate.start_ns <= spans[name].start_ns <= spans[name].end_ns <= generate.end_ns
    assert spans[names.SPAN_PREFILL].end_ns <= spans[names.SPAN_DECODE].start_ns
    assert spans[names.SPAN_DECODE].attributes[names.DECODE_ROUNDS] == 5


def test_a_slow_chunk_still_gives_progress_every_second(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = Decoder.prefill

    def slow_prefill(self: Decoder, *args: Any, **kwargs: Any) -> Any:
        time.sleep(2.5)
        return prefill(self, *args, **kwargs)

    monkeypatch.setattr(Decoder, "prefill", slow_prefill)
    arrivals_s: list[float] = []
    with EngineCall(served.port, make_request([7] * 60, 1)) as generation:
        for event in generation:
            arrivals_s.append(time.monotonic())
            if isinstance(event, Tokens):
                break
    progress = [event for event in generation.events if isinstance(event, Prefill)]
    assert [event.done for event in progress] == [0, 0, 60] and {event.total for event in progress} == {60}
    assert max(after - before for before, after in pairwise(arrivals_s)) < 1.5
