"""The messages array of a chat body. Owns roles, content parts and the ties between calls and their results.

Every complaint names the position (`messages[3].content[1]`). developer is system; missing, null and [] content are
empty; a result must answer an earlier call; an empty last assistant message is dropped, so that it is never an error.
"""

from contracts.errors import InvalidRequest, Unsupported
from gateway.conversation import Message, Role
from gateway.wire.fields import Fields, as_object, refuse

# Far above what a window can hold, far below what would keep a process busy.
MAX_MESSAGES = 20_000
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_IMAGE_PARTS = frozenset({"image_url", "input_image", "image"})
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})


def read_messages(fields: Fields, max_messages: int = MAX_MESSAGES) -> tuple[tuple[Message, ...], list[str]]:
    """The messages and warnings about what this model cannot be shown.

    Raises: InvalidRequest or Unsupported naming the position.
    """
    items = fields.array("messages")
    if not items:
        raise InvalidRequest("messages must be a non-empty array", param="messages")
    num_items = len(items)
    check_count(num_items, max_messages)
    call_ids: set[str] = set()
    messages: list[Message] = []
    for index, item in enumerate(items):
        message = as_object(item, f"messages[{index}]")
        num_items += _count_parts(message)
        check_count(num_items, max_messages)
        role = _read_role(message)
        if role == "tool":
            _check_answers_call(message, call_ids)
        if role == "assistant":
            call_ids |= _read_call_ids(message)
        messages.append(Message(role, _read_content(message)))
    warnings = ["tool calls in messages ignored: this model cannot be shown them"] if call_ids else []
    if _is_empty_assistant(messages[-1], items[-1]):
        messages.pop()
    return tuple(messages), warnings


def check_count(num_items: int, limit: int) -> None:
    """Raises: InvalidRequest when messages, with their content parts, are more than limit."""
    if num_items > limit:
        raise InvalidRequest(
            f"messages has at least {num_items} items (messages and content parts), the limit is {limit}",
            param="messages",
        )


def _count_parts(message: Fields) -> int:
    content = message.raw("content")
    return len(content) if isinstance(content, list) else 0


def _read_role(message: Fields) -> Role:
    name = message.text("role")
    role = _ROLES.get(name) if name is not None else None
    if role is None:
        refuse(message.where("role"), f"one of {', '.join(_ROLES)}", name)
    return role


def _read_content(message: Fields) -> tuple[str, ...]:
    content = message.raw("content")
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        refuse(message.where("content"), "a string or an array of parts", content)
    parts = [_read_part(as_object(part, f"{message.where('content')}[{i}]")) for i, part in enumerate(content)]
    return tuple(part for part in parts if part is not None)


def _read_part(part: Fields) -> str | None:
    kind = part.text("type")
    if kind in _IMAGE_PARTS:
        raise Unsupported(f"{part.path} is an image, which this model does not take", param=part.path)
    if kind in _REASONING_PARTS:
        return None
    field = _TEXT_PARTS.get(kind) if kind is not None else None
    if field is None:
        raise InvalidRequest(f"{part.path} has the unknown type {kind!r}", param=part.path)
    text = part.text(field)
    if text is None:
        refuse(part.where(field), "a string", None)
    return text


def _check_answers_call(message: Fields, call_ids: set[str]) -> None:
    call_id = message.text("tool_call_id")
    if call_id is None or call_id not in call_ids:
        refuse(message.where("tool_call_id"), "the id of a tool call in an earlier message", call_id)


def _read_call_ids(message: Fields) -> set[str]:
    path = message.where("tool_calls")
    ids = set()
    for index, item in enumerate(message.array("tool_calls") or ()):
        call = as_object(item, f"{path}[{index}]")
        call_id = call.text("id")
        if not call_id:
            refuse(call.where("id"), "a non-empty string", call_id)
        ids.add(call_id)
    return ids


def _is_empty_assistant(message: Message, item: object) -> bool:
    calls = isinstance(item, dict) and item.get("tool_calls")
    return message.role == "assistant" and not any(message.parts) and not calls
