"""Bodies of POST /v1/chat/completions: what each field means, and the exact place and words of every complaint."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest, ServiceError, SingleChoiceOnly, Unsupported
from contracts.generate import Sampling
from gateway.conversation import Message
from gateway.wire.chat_request import BodyLimits, ChatCall, parse_chat

HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ChatCall:
    body = {"model": "local", "messages": HI} | fields
    return parse_chat(json.dumps(body).encode(), "served", BodyLimits(32))


def refuse(error: type[ServiceError], **fields: Any) -> ServiceError:
    with pytest.raises(error) as caught:
        parse(**fields)
    return caught.value


def test_a_minimal_body() -> None:
    call = parse_chat(b'{"messages":[{"role":"user","content":"hi"}]}', "served", BodyLimits(32))
    request = call.request
    assert (call.stream, call.include_usage) == (False, False)
    assert (request.model, request.messages) == ("served", (Message("user", ("hi",)),))
    assert (request.max_tokens, request.stop, request.logprobs, request.session_key) == (None, (), None, None)
    assert request.warnings == ()


def test_every_field_that_is_used() -> None:
    call = parse(
        stream=True, stream_options={"include_usage": True}, max_tokens=8, max_completion_tokens=16,
        stop=["a", "b"], temperature=0.3, top_p=0.5, top_k=7, min_p=0.1, presence_penalty=-1, frequency_penalty=2,
        repetition_penalty=1.1, seed=9, logit_bias={"5": -100, "6": 1.5}, logprobs=True, top_logprobs=3,
        prompt_cache_key="session",
    )  # fmt: skip
    request = call.request
    assert call.stream and call.include_usage
    assert (request.max_tokens, request.stop, request.logprobs, request.session_key) == (16, ("a", "b"), 3, "session")
    assert request.sampling.resolve(Sampling(), drawn_seed=1) == Sampling(
        0.3, 0.5, 7, 0.1, -1.0, 2.0, 1.1, seed=9, logit_bias={5: -100.0, 6: 1.5}
    )


def test_absent_sampling_takes_the_models_default_and_a_drawn_seed() -> None:
    default = Sampling(temperature=0.2, top_p=0.9, repetition_penalty=1.2)
    assert parse().request.sampling.resolve(default, drawn_seed=77) == Sampling(
        temperature=0.2, top_p=0.9, repetition_penalty=1.2, seed=77
    )
    assert parse(temperature=0, top_k=-1, seed=0).request.sampling.resolve(default, drawn_seed=7) == Sampling(
        temperature=0.0, top_p=0.9, top_k=0, repetition_penalty=1.2, seed=0
    )


@given(st.integers(-(2**63), 2**64))
def test_any_whole_seed_fits_the_contract_and_is_kept(seed: int) -> None:
    resolved = parse(seed=seed).request.sampling.resolve(Sampling(), drawn_seed=1).seed
    assert 0 <= resolved < 2**63 and (resolved == seed or not 0 <= seed < 2**63)


@pytest.mark.parametrize("field", ["temperature", "max_tokens", "stop", "n", "tools", "stream", "seed", "logprobs"])
def test_null_counts_as_absent(field: str) -> None:
    assert parse(**{field: None}) == parse()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("text", ("text",)),
        (None, ()),
        ([], ()),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], ("a", "b")),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "output_text", "text": "x"}], ("x",)),
        ([{"type": "refusal", "refusal": "no"}], ("no",)),
    ],
)
def test_content_forms(content: Any, parts: tuple[str, ...]) -> None:
    messages = [{"role": "assistant", "content": content}, *HI]
    assert parse(messages=messages).request.messages[0] == Message("assistant", parts)


def test_roles_and_order_are_kept() -> None:
    roles = ["developer", "user", "assistant", "system", "user"]
    messages = parse(messages=[{"role": role, "content": role} for role in roles]).request.messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "system", "user"]
    assert [message.parts for message in messages] == [(role,) for role in roles]


def test_missing_content_is_empty_and_an_empty_last_assistant_is_dropped() -> None:
    assert parse(messages=[*HI, {"role": "assistant"}]).request.messages == (Message("user", ("hi",)),)
    assert len(parse(messages=[*HI, {"role": "assistant", "content": "so"}]).request.messages) == 2
    assert parse(messages=[{"role": "assistant", "content": ""}]).request.messages == ()


def test_a_tool_result_must_answer_an_earlier_call() -> None:
    history = [*HI, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "5"}]
    assert parse(messages=history).request.messages[2] == Message("tool", ("5",))
    for call_id in ("nope", None, ""):
        error = refuse(InvalidRequest, messages=[*HI, {"role": "tool", "tool_call_id": call_id, "content": "x"}])
        assert error.param == "messages[1].tool_call_id"
    assert "nope" in refuse(InvalidRequest, messages=[*HI, {"role": "tool", "tool_call_id": "nope"}]).message


def test_what_the_model_cannot_be_shown_is_said() -> None:
    assert "tools ignored" in parse(tools=[NOW], tool_choice="auto").request.warnings[0]
    assert parse(tools=[NOW], tool_choice="none").request.warnings == ()
    assert parse(tools=[]).request.warnings == ()
    history = [*HI, {"role": "assistant", "tool_calls": [CALL]}]
    assert "tool calls in messages ignored" in parse(messages=history).request.warnings[0]
    assert "reasoning_effort" in parse(reasoning_effort="banana").request.warnings[0]
    assert parse(reasoning_effort="low").request.warnings == ()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "non-empty"),
        ({"messages": None}, "messages", "non-empty"),
        ({"messages": "hi"}, "messages", '"hi"'),
        ({"messages": {"role": "user"}}, "messages", "an object"),
        ({"messages": ["hi"]}, "messages[0]", '"hi"'),
        ({"messages": [*HI, {"role": "robot", "content": "x"}]}, "messages[1].role", '"robot"'),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "null"),
        ({"messages": [{"role": 5}]}, "messages[0].role", "5"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "5"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content", "an object"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", '"x"'),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "hologram"}]}]},
            "messages[0].content[1]",
            "hologram",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]", "None"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id", "non-empty"),
        ({"model": 5}, "model", "5"),
        ({"stream": "yes"}, "stream", '"yes"'),
        ({"stream": 1}, "stream", "1"),
        ({"stream_options": True}, "stream_options", "true"),
        ({"stream_options": {"include_usage": "x"}}, "stream_options.include_usage", "true or false"),
        ({"max_tokens": -1}, "max_tokens", "at least 1, got -1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens", "1.5"),
        ({"max_tokens": True}, "max_tokens", "true"),
        ({"max_tokens": "5"}, "max_tokens", '"5"'),
        ({"max_completion_tokens": -7}, "max_completion_tokens", "-7"),
        ({"temperature": 2.5}, "temperature", "from 0 to 2, got 2.5"),
        ({"temperature": -0.1}, "temperature", "-0.1"),
        ({"temperature": "hot"}, "temperature", '"hot"'),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_p": 1.01}, "top_p", "1.01"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"min_p": 1.5}, "min_p", "1.5"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2, got 3"),
        ({"frequency_penalty": -3}, "frequency_penalty", "-3"),
        ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
        ({"seed": 1.5}, "seed", "1.5"),
        ({"seed": "x"}, "seed", '"x"'),
        ({"stop": 5}, "stop", "5"),
        ({"stop": ""}, "stop", "1 to 1024"),
        ({"stop": ["a", ""]}, "stop[1]", "1 to 1024"),
        ({"stop": ["a", 5]}, "stop[1]", "5"),
        ({"stop": ["x" * 1025]}, "stop[0]", "(1027 characters)"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"logit_bias": [1]}, "logit_bias", "an array"),
        ({"logit_bias": {"a": 1}}, "logit_bias", '"a"'),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "101"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5", '"x"'),
        ({"logprobs": 1}, "logprobs", "1"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20, got 21"),
        ({"tools": {"a": 1}}, "tools", "an object"),
        ({"tools": ["x"]}, "tools[0]", '"x"'),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "non-empty"),
        ({"tool_choice": "always"}, "tool_choice", '"always"'),
        ({"tool_choice": 5}, "tool_choice", "5"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}, "tools": [NOW]}, "tool_choice", "nope"),
        ({"n": "two"}, "n", '"two"'),
        ({"response_format": "json"}, "response_format", '"json"'),
        ({"response_format": {"type": "yaml"}}, "response_format.type", '"yaml"'),
        ({"response_format": {}}, "response_format.type", "null"),
    ],
)  # fmt: skip
def test_invalid_fields_name_their_place(fields: dict[str, Any], param: str, words: str) -> None:
    error = refuse(InvalidRequest, **fields)
    assert error.param == param
    assert words in error.message, error.message


@pytest.mark.parametrize("count", [0, 2, -1, 100])
def test_more_than_one_choice_has_its_own_code(count: int) -> None:
    error = refuse(SingleChoiceOnly, n=count)
    assert (error.code, error.param) == ("n_not_supported", "n") and str(count) in error.message
    assert parse(n=1) == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": {}}}}, "response_format"),
        ({"tools": [NOW], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ],
)  # fmt: skip
def test_what_is_known_but_not_here_is_unsupported(fields: dict[str, Any], param: str) -> None:
    error = refuse(Unsupported, **fields)
    assert (error.code, error.param) == ("unsupported", param)
    assert parse(response_format={"type": "text"}) == parse()


def test_unknown_fields_are_ignored() -> None:
    extra = {"store": True, "metadata": {"a": 1}, "user": "u", "service_tier": "auto", "parallel_tool_calls": True}
    assert parse(**extra) == parse()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"messages": NaN}', "not valid JSON"),
        (b'{"temperature": 1e999}', "not valid JSON"),
        (b'{"a":"\\ud83d",}', "not valid JSON"),
        (b'{"a":"\\ud83d","b":NaN}', "not valid JSON"),
        (b"[]", "must be a JSON object, not an array"),
        (b'"hi"', "must be a JSON object, not a string"),
        (b"null", "must be a JSON object, not null"),
        (b'{"a":' + b"[" * 33 + b"]" * 33 + b"}", "the limit is 32 levels"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":"\\ud83d","b":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bodies_that_are_no_request(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_chat(body, "m", BodyLimits(32))


def test_nesting_below_the_limit_is_fine() -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"x":' + b"[" * 30 + b"]" * 30 + b"}"
    assert parse_chat(body, "m", BodyLimits(32)).request.messages[0].parts == ("hi",)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("\\ud83d", "\ufffd"),
        ("a\\udc00b", "a\ufffdb"),
        ("\\ud83d\\ude00 \\ud83d", "😀 \ufffd"),
        ("\\uD83Dx", "\ufffdx"),
    ],
)
def test_half_characters_are_replaced_not_refused(escaped: str, text: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"{escaped}"}}]}}'.encode()
    assert parse_chat(body, "m", BodyLimits(32)).request.messages[0].parts == (text,)


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
FIELDS = """
    model messages stream stream_options max_tokens max_completion_tokens stop temperature top_p top_k min_p seed n
    presence_penalty frequency_penalty repetition_penalty logit_bias logprobs top_logprobs tools tool_choice
    response_format reasoning_effort prompt_cache_key continue_final_message
"""


@given(st.dictionaries(st.sampled_from(FIELDS.split()), JSON_VALUES, max_size=4))
def test_no_body_ends_in_anything_but_a_request_or_a_service_error(fields: dict[str, Any]) -> None:
    try:
        call = parse(**fields)
    except ServiceError as error:
        assert isinstance(error, InvalidRequest | Unsupported)
    else:
        assert call.request.messages or fields.get("messages")


def test_messages_and_their_parts_are_counted_together() -> None:
    part = {"type": "text", "text": "x"}
    fits = {"messages": [{"role": "user", "content": [part] * 3}, *HI]}
    limits = BodyLimits(32, max_messages=5)
    assert len(parse_chat(json.dumps(fits).encode(), "m", limits).request.messages) == 2
    for messages in (HI * 6, [{"role": "user", "content": [part] * 5}], [*HI, {"role": "user", "content": [part] * 4}]):
        with pytest.raises(InvalidRequest, match=r"at least 6 items.*the limit is 5") as caught:
            parse_chat(json.dumps({"messages": messages}).encode(), "m", limits)
        assert caught.value.param == "messages"


def test_every_ignored_field_is_named() -> None:
    fields = {
        "functions": [{"name": "now"}],
        "function_call": "auto",
        "modalities": ["text", "audio"],
        "audio": {"voice": "x", "format": "wav"},
        "prediction": {"type": "content", "content": "x"},
    }
    warnings = parse(**fields).request.warnings
    assert [warning.split(" ignored: ")[0] for warning in warnings] == [
        "functions",
        "modalities",
        "audio",
        "prediction",
    ]
    assert parse(functions=fields["functions"], function_call="none", modalities=["text"]).request.warnings == ()
    for forced in ({"name": "now"}, "required"):
        assert refuse(Unsupported, functions=fields["functions"], function_call=forced).param == "function_call"
    assert refuse(InvalidRequest, function_call="banana").param == "function_call"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": -3}, "max_tokens must be at least 1, got -3"),
        ({"max_tokens": "x"}, 'max_tokens must be a whole number of at least 1, got "x"'),
        ({"top_k": -5}, "top_k must be from -1 to 1000000, got -5"),
        ({"temperature": 9}, "temperature must be from 0 to 2, got 9"),
    ],
)
def test_ranges_read_as_sentences(fields: Any, message: str) -> None:
    assert refuse(InvalidRequest, **fields).message == message


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_called_empty(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the request body is empty"):
        parse_chat(body, "m", BodyLimits(32))
