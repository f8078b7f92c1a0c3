"""The body of POST /v1/chat/completions as a ChatRequest. Owns what each field means, its range and its complaint.

Receives bytes, hands on a valid request with exact error paths; unknown fields are ignored, known ones that cannot be
honoured are refused or named in a warning. Does not know model, tokens or HTTP.
"""

from dataclasses import dataclass
from typing import NoReturn

from contracts.errors import InvalidRequest, SingleChoiceOnly, Unsupported
from gateway.conversation import ChatRequest, SamplingWish
from gateway.wire.chat_messages import MAX_MESSAGES, check_count, read_messages
from gateway.wire.fields import Fields, as_object, count_items, decode_body, refuse, show

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
MAX_TOP_K = 1_000_000
MAX_SEED = 2**63 - 1

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "default")
_TOOL_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How deep a body may nest, and how many messages (with their content parts) it may hold."""

    max_nesting: int
    max_messages: int = MAX_MESSAGES


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A parsed body: the request, and how the client wants its reply."""

    request: ChatRequest
    stream: bool
    include_usage: bool


def parse_chat(body: bytes, default_model: str, limits: BodyLimits) -> ChatCall:
    """Raises: InvalidRequest, SingleChoiceOnly or Unsupported naming the field, its value and what is allowed."""
    check_count(count_items(body, "messages", "content"), limits.max_messages)
    fields = decode_body(body, limits.max_nesting)
    warnings: list[str] = []
    _refuse_unsupported(fields)
    _check_tools(fields, warnings)
    _check_functions(fields, warnings)
    _name_ignored(fields, warnings)
    _check_effort(fields, warnings)
    messages, message_warnings = read_messages(fields, limits.max_messages)
    options = fields.nested("stream_options")
    request = ChatRequest(
        model=fields.text("model") or default_model,
        messages=messages,
        sampling=_read_sampling(fields),
        max_tokens=_read_max_tokens(fields),
        stop=_read_stop(fields),
        logprobs=_read_logprobs(fields),
        session_key=_read_session_key(fields),
        warnings=(*warnings, *message_warnings),
    )
    include_usage = options is not None and options.boolean("include_usage") is True
    return ChatCall(request, stream=fields.boolean("stream") is True, include_usage=include_usage)


def _refuse_unsupported(fields: Fields) -> None:
    num_choices = fields.integer("n")
    if num_choices is not None and num_choices != 1:
        raise SingleChoiceOnly(f"n must be 1, got {num_choices}: there is one sequence", param="n")
    wanted = fields.nested("response_format")
    if wanted is not None:
        kind = wanted.text("type")
        if kind in ("json_object", "json_schema"):
            raise Unsupported(f"response_format {kind} is not supported yet; use text", param="response_format")
        if kind != "text":
            refuse("response_format.type", "text, json_object or json_schema", kind)
    if fields.boolean("continue_final_message"):
        raise Unsupported("continue_final_message is not supported yet", param="continue_final_message")


def _check_tools(fields: Fields, warnings: list[str]) -> None:
    """tools alone must not end an agent's conversation, so they are ignored with a warning; a forced call cannot be."""
    tools = fields.array("tools")
    names = {_tool_name(as_object(tool, f"tools[{index}]")) for index, tool in enumerate(tools or ())}
    choice = fields.raw("tool_choice")
    if isinstance(choice, dict):
        _refuse_named_choice(as_object(choice, "tool_choice"), names)
    if choice is not None and choice not in _TOOL_CHOICES:
        refuse("tool_choice", "auto, none, required or an object that names a function", choice)
    if choice == "required":
        raise Unsupported("tool_choice required is not supported: this model cannot call tools", param="tool_choice")
    if tools and choice != "none":
        warnings.append("tools ignored: the chat template of this model cannot present them")


def _tool_name(tool: Fields) -> str | None:
    function = tool.nested("function")
    if function is None:
        return None
    name = function.text("name")
    if not name:
        refuse(function.where("name"), "a non-empty string", name)
    return name


def _refuse_named_choice(choice: Fields, names: set[str | None]) -> NoReturn:
    function = choice.nested("function")
    name = function.text("name") if function is not None else None
    if name is None or name not in names:
        raise InvalidRequest(f"tool_choice names {show(name)}, which is not among the tools", param="tool_choice")
    raise Unsupported(f"tool_choice {name} is not supported: this model cannot call tools", param="tool_choice")


def _check_functions(fields: Fields, warnings: list[str]) -> None:
    """The older spelling of tools, with the same rules."""
    functions = fields.array("functions")
    call = fields.raw("function_call")
    if isinstance(call, dict) or call == "required":
        wanted = show(call.get("name") if isinstance(call, dict) else call)
        raise Unsupported(
            f"function_call {wanted} is not supported: this model cannot call functions", param="function_call"
        )
    if call is not None and call not in ("auto", "none"):
        refuse("function_call", "auto, none or an object that names a function", call)
    if functions and call != "none":
        warnings.append("functions ignored: the chat template of this model cannot present them")


def _name_ignored(fields: Fields, warnings: list[str]) -> None:
    modalities = fields.array("modalities")
    if modalities and list(modalities) != ["text"]:
        warnings.append("modalities ignored: this model answers in text only")
    if fields.has("audio"):
        warnings.append("audio ignored: this model answers in text only")
    if fields.has("prediction"):
        warnings.append("prediction ignored: replies are not guessed from it")


def _check_effort(fields: Fields, warnings: list[str]) -> None:
    effort = fields.raw("reasoning_effort")
    if effort is not None and effort not in _EFFORTS:
        warnings.append("reasoning_effort replaced by default: unknown value")


def _read_sampling(fields: Fields) -> SamplingWish:
    top_k = fields.integer("top_k", -1, MAX_TOP_K)
    seed = fields.integer("seed")
    return SamplingWish(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1, above=True),
        top_k=0 if top_k == -1 else top_k,
        min_p=fields.number("min_p", 0, 1),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        repetition_penalty=fields.number("repetition_penalty", 0, 10, above=True),
        seed=None if seed is None else seed & MAX_SEED,
        logit_bias=_read_logit_bias(fields),
    )


def _read_logit_bias(fields: Fields) -> dict[int, float] | None:
    biases = fields.raw("logit_bias")
    if biases is None:
        return None
    entries = as_object(biases, "logit_bias")
    read: dict[int, float] = {}
    for key in biases if isinstance(biases, dict) else ():
        if not (key.isascii() and key.isdigit()):
            refuse("logit_bias", "an object whose keys are token ids", key)
        value = entries.number(key, -100, 100)
        if value is not None:
            read[int(key)] = value
    return read


def _read_max_tokens(fields: Fields) -> int | None:
    old, new = fields.integer("max_tokens", 1), fields.integer("max_completion_tokens", 1)
    return old if new is None else new


def _read_stop(fields: Fields) -> tuple[str, ...]:
    given = fields.raw("stop")
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list):
        refuse("stop", "a string or an array of strings", given)
    if len(stops) > MAX_STOPS:
        refuse("stop", f"an array of at most {MAX_STOPS} strings", len(stops))
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            path = "stop" if isinstance(given, str) else f"stop[{index}]"
            refuse(path, f"a string of 1 to {MAX_STOP_CHARS} characters", stop)
    return tuple(stops)


def _read_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs true", param="top_logprobs")
    return (top or 0) if wanted else None


def _read_session_key(fields: Fields) -> str | None:
    key = fields.raw("prompt_cache_key")
    return key if isinstance(key, str) and key else None
