"""POST /v1/chat/completions over real sockets, openai SDK and raw HTTP: shapes, headers, stream == non-stream."""

import asyncio
import json
import re
import time
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.conversation import Message
from gateway.text.model_text import ModelText
from support.gateway_stack import CHAT_PATH, GatewayStack, join_content, parse_events
from support.scripted_engine import Script

HI: list[Any] = [{"role": "user", "content": "hi"}]
POEM = "naïve 🌍 the quick brown fox\n\tjumps over 日本語 dogs"


@pytest.fixture
def client(stack: GatewayStack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="x", max_retries=0, timeout=20)


def test_sdk_reply(stack: GatewayStack, client: openai.OpenAI) -> None:
    stack.engine.script = Script(text=POEM, cached_tokens=3)
    raw = client.chat.completions.with_raw_response.create(model="any/name", messages=HI, seed=5, temperature=0.7)
    reply = raw.parse()
    seen = stack.engine.seen[0].request
    assert reply.choices[0].message.content == POEM
    assert reply.choices[0].message.role == "assistant"
    assert (reply.choices[0].finish_reason, reply.choices[0].index, len(reply.choices)) == ("stop", 0, 1)
    assert (reply.object, reply.model) == ("chat.completion", "any/name")
    assert raw.headers["x-soloist-model"] == "tiny-text", "the model that answered, whatever name was asked for"
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", reply.id) and abs(reply.created - time.time()) < 60
    assert reply.system_fingerprint and reply.system_fingerprint.startswith("fp_")
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.prompt_tokens == len(seen.token_ids)
    assert reply.usage.completion_tokens == len(stack.engine.encode(POEM))
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
    assert (seen.sampling.seed, seen.sampling.temperature, seen.sampling.top_p) == (5, 0.7, 0.9)
    assert float(raw.headers["x-soloist-queue-wait-ms"]) >= 0 and raw.headers["x-request-id"].startswith("req_")


def test_sdk_stream(stack: GatewayStack, client: openai.OpenAI) -> None:
    stack.engine.script = Script(text=POEM, token_delay_s=0.002)
    chunks = list(
        client.chat.completions.create(
            model="m", messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )  # fmt: skip
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == POEM
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(stack.engine.encode(POEM))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len(chunks) > 8, "tokens that come apart are shown apart"


def test_async_sdk_serves_clients_in_turn(stack: GatewayStack) -> None:
    stack.engine.script = Script(text="the fox", token_delay_s=0.02)

    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="x", max_retries=0) as client:
            calls = [client.chat.completions.create(model="m", messages=HI) for _ in range(3)]
            replies = await asyncio.gather(*calls)
            streamed = await client.chat.completions.create(model="m", messages=HI, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in streamed])
            return [*(reply.choices[0].message.content for reply in replies), text]

    assert asyncio.run(ask_all()) == ["the fox"] * 4
    spans = sorted((seen.started_s, seen.ended_s) for seen in stack.engine.seen)
    fences = [seen.request.fence or (0, 0) for seen in stack.engine.seen]
    assert fences == sorted(set(fences)) and len(fences) == 4
    assert all(ended is not None for _, ended in spans)


def test_raw_stream_has_the_wire_form_agents_need(stack: GatewayStack) -> None:
    stack.engine.script = Script(text="a\u0085b\u2028c\u2029d\re\u0000f\u007fg\nh")
    reply = stack.ask(stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-soloist-model"] == "tiny-text"
    assert reply.headers["x-accel-buffering"] == "no" and reply.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in reply.headers and "content-length" not in reply.headers
    body = reply.content
    assert not re.search(rb"\xc2\x85|\xe2\x80[\xa8\xa9]|[\x00-\x09\x0b-\x1f\x7f]", body)
    assert body.endswith(b"data: [DONE]\n\n") and body.count(b"[DONE]") == 1
    events = parse_events(reply.text)
    assert join_content(events) == "a\u0085b\u2028c\u2029d\re\u0000f\u007fg\nh"
    assert "usage" not in events[-2], "usage comes only when asked for"
    assert all(choice["logprobs"] is None for event in events[:-1] for choice in event["choices"])


FIELD_SETS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 3},
    {"stop": ["fox", "dogs"]},
    {"stop": "q"},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "stop": ["brown fox"], "max_tokens": 40},
]


@pytest.mark.parametrize("fields", FIELD_SETS)
@pytest.mark.parametrize("tokens_per_event", [1, 7])
def test_stream_equals_non_stream(stack: GatewayStack, fields: dict[str, Any], tokens_per_event: int) -> None:
    stack.engine.script = Script(text=POEM, tokens_per_event=tokens_per_event)
    whole = stack.ask(**fields).json()
    events = parse_events(stack.ask(stream=True, stream_options={"include_usage": True}, **fields).text)
    choice = whole["choices"][0]
    chunks = [event["choices"][0] for event in events[:-2]]
    assert join_content(events) == choice["message"]["content"]
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == [choice["finish_reason"]]
    assert events[-2]["usage"] == whole["usage"]
    streamed = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert streamed == ((choice["logprobs"] or {}).get("content") or [])
    if fields.get("logprobs"):
        assert all(len(entry["top_logprobs"]) == fields.get("top_logprobs", 0) for entry in streamed)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=20), st.integers(1, 5), st.sampled_from([None, "e", "\n", "🌍"]))
def test_any_text_survives_both_ways(stack: GatewayStack, content: str, group: int, stop: str | None) -> None:
    stack.engine.script = Script(text=content, tokens_per_event=group)
    expected = content if stop is None else content.split(stop)[0]
    assert stack.ask(stop=stop).json()["choices"][0]["message"]["content"] == expected
    assert join_content(parse_events(stack.ask(stop=stop, stream=True).text)) == expected


def test_finish_reasons_and_limits(stack: GatewayStack) -> None:
    stack.engine.script = Script(text="word " * 40)
    all_limits: list[dict[str, Any]] = [
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"max_tokens": 9, "max_completion_tokens": 5},
    ]
    for limits in all_limits:
        reply = stack.ask(**limits).json()
        assert (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == ("length", 5)
    reply = stack.ask(stop="word").json()
    assert (reply["choices"][0]["finish_reason"], reply["choices"][0]["message"]["content"]) == ("stop", "")


def test_a_stop_string_frees_the_engine(stack: GatewayStack) -> None:
    stack.engine.script = Script(text="one two three " + "four " * 500, token_delay_s=0.005)
    reply = stack.ask(stop=[" two"])
    assert reply.json()["choices"][0]["message"]["content"] == "one"
    stack.reset()
    assert stack.ask().status_code == 200


def test_the_character_cut_by_the_limit_is_withheld(stack: GatewayStack, text: ModelText) -> None:
    ids = [text.tokenizer.token_bytes.index(part) for part in (b"o", b"k", b"\xf0", b"\x9f", b"\x8c")]
    stack.engine.script = Script(ids=ids)
    reply = stack.ask(max_tokens=4).json()
    assert (reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]) == ("ok", 4)
    assert join_content(parse_events(stack.ask(max_tokens=4, stream=True).text)) == "ok"


def test_logprobs_have_the_openai_shape(stack: GatewayStack, client: openai.OpenAI) -> None:
    stack.engine.script = Script(text="é fox")
    reply = client.chat.completions.create(model="m", messages=HI, logprobs=True, top_logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    ids = stack.engine.encode("é fox")
    assert [entry.logprob for entry in logprobs.content] == [-token_id / 1000 for token_id in ids]
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == "é fox"
    first = logprobs.content[0]
    assert [top.logprob for top in first.top_logprobs] == [-ids[0] / 1000, -(ids[0] + 1) / 1000]
    assert stack.engine.seen[0].request.logprobs == 2


def test_seed_is_drawn_when_absent_and_defaults_come_from_the_model(stack: GatewayStack) -> None:
    for _ in range(2):
        assert stack.ask().status_code == 200
    first, second = (seen.request.sampling for seen in stack.engine.seen)
    assert first.seed != second.seed and (first.temperature, first.top_p) == (0.5, 0.9)


def test_the_window_is_exact(stack: GatewayStack, text: ModelText) -> None:
    window = stack.engine.info.context_limit
    room = window - len(text.prompt.encode([Message("user", ("",))]))  # a digit is one token
    reply = stack.ask("0" * (room - 1000), max_tokens=32000)
    assert (reply.status_code, reply.headers["x-soloist-max-tokens"]) == (200, "1000")
    assert stack.engine.seen[-1].request.max_new_tokens == 1000
    reply = stack.ask("0" * (room - 1), max_tokens=32000)
    assert (reply.status_code, stack.engine.seen[-1].request.max_new_tokens) == (200, 1)
    num_seen = len(stack.engine.seen)
    for stream in (False, True):
        reply = stack.ask("0" * room, stream=stream)
        assert reply.status_code == 400 and reply.headers["content-type"] == "application/json"
        assert reply.json()["error"] == {
            "message": f"This model's maximum context length is {window} tokens. However, your messages resulted in "
            f"{window} tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    assert len(stack.engine.seen) == num_seen
    assert "x-soloist-max-tokens" not in stack.ask(max_tokens=5).headers


def test_long_prompts_are_tokenised_beside_the_loop(stack: GatewayStack, text: ModelText) -> None:
    """Above and below the threshold the ids are the same function of the text."""
    for content in ("the quick fox", "the quick brown fox jumps over " * 530):
        assert stack.ask(content).status_code == 200
        assert stack.engine.seen[-1].request.token_ids == text.prompt.encode([Message("user", (content,))])


def test_warnings_reach_the_client_and_tools_do_not_stop_it(stack: GatewayStack) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    reply = stack.ask(tools=[tool], tool_choice="auto", reasoning_effort="banana")
    assert reply.status_code == 200 and "tools ignored" in reply.headers["x-soloist-warning"]
    assert "reasoning_effort" in reply.headers["x-soloist-warning"]
    assert stack.ask(tools=[tool], tool_choice="required").status_code == 400


def test_logit_bias_outside_the_vocabulary(stack: GatewayStack) -> None:
    reply = stack.ask(logit_bias={"100000": 1})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "logit_bias"
    assert stack.ask(logit_bias={"5": -100}).status_code == 200
    assert stack.engine.seen[-1].request.sampling.logit_bias == {5: -100.0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 0}, "n", "n_not_supported"),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"messages": []}, "messages", None),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported"),
    ],
)
def test_refusals_are_plain_json(
    stack: GatewayStack, fields: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    reply = stack.post({"model": "m", "messages": HI, "stream": stream} | fields)
    assert reply.status_code == 400 and reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert reply.json()["request_id"] == reply.headers["x-request-id"]
    assert stack.engine.seen == []


def test_sdk_sees_typed_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=HI, n=2)
    assert (caught.value.param, caught.value.code) == ("n", "n_not_supported")
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("other")
    assert missing.value.code == "not_found"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"null"])
def test_invalid_json(stack: GatewayStack, content: bytes) -> None:
    reply = stack.post(content)
    assert reply.status_code == 400 and reply.json()["error"]["type"] == "invalid_request_error"


def test_thirty_megabytes_are_refused(stack: GatewayStack) -> None:
    """With the length declared and without it; the client gets its answer, not a reset, and the gateway stays small."""
    chunk = b"x" * (1 << 20)

    def chunks() -> Any:
        yield b'{"messages":[{"role":"user","content":"'
        for _ in range(30):
            yield chunk

    for content in (chunk * 30, chunks()):
        reply = stack.client.post(CHAT_PATH, content=content)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large" and "20971520" in reply.text
    assert stack.ask().status_code == 200


def test_a_big_body_below_the_limit_is_read(stack: GatewayStack) -> None:
    reply = stack.ask("word " * 200_000)
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"


def test_models(stack: GatewayStack, client: openai.OpenAI) -> None:
    entry = stack.client.get("/v1/models").json()["data"][0]
    window = stack.engine.info.context_limit
    assert (entry["id"], entry["object"], entry["owned_by"]) == ("tiny-text", "model", "soloist")
    assert (entry["context_length"], entry["max_model_len"], entry["meta"]["n_ctx"]) == (window, window, window)
    assert entry["max_output_tokens"] > 0 and entry["input_modalities"] == ["text"]
    assert stack.client.get("/v1/models/tiny-text").json() == entry
    assert [model.id for model in client.models.list()] == ["tiny-text"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("POST", "/v1/nope", 404, "not_found"),
        ("GET", "/v1/models/nope/nope", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_unknown_routes_have_the_error_shape(
    stack: GatewayStack, method: str, path: str, status: int, code: str
) -> None:
    reply = stack.client.request(method, path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_small_routes(stack: GatewayStack) -> None:
    probe = stack.client.head("/")
    assert (probe.status_code, probe.content) == (200, b"")
    root = stack.client.get("/")
    assert root.status_code == 200 and f"POST {CHAT_PATH}" in root.json()["routes"]
    for path in ("/health/live", "/health/ready", "/v1/models", "/metrics"):
        head = stack.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
    assert stack.client.get("/v1/models/").json() == stack.client.get("/v1/models").json()
    slashed = stack.client.post(f"{CHAT_PATH}/", json={"messages": HI})
    assert slashed.status_code == 200 and slashed.json()["object"] == "chat.completion"
    assert stack.client.get("/health/live").status_code == 200
    assert stack.client.get("/health/ready").json() == {"status": "ready", "model": "tiny-text"}
    spec = stack.client.get("/openapi.json").json()
    assert "requestBody" in spec["paths"][CHAT_PATH]["post"]
    stack.ask()
    assert stack.metric("soloist_tokens_total", soloist_token_kind="output") > 0
    assert stack.metric("gen_ai_server_request_duration_seconds_count") > 0


def test_one_log_line_per_request_without_its_text(stack: GatewayStack, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="gateway.request")
    request_id = stack.ask("my secret words").headers["x-request-id"]
    stack.ask(n=5)
    deadline_s = time.monotonic() + 10
    while len(caplog.records) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)  # a request's line is written behind its last byte
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.request"]
    assert [line for line in lines if request_id in line and "200 stop" in line and CHAT_PATH in line]
    assert len([line for line in lines if "400 rejected n_not_supported" in line]) == 1
    assert len(lines) == 2 and "secret" not in json.dumps(lines)
