"""A reply as chat.completion JSON and chat.completion.chunk events. Owns both shapes, hands on bytes, sends nothing.

The parts of a chunk that never change are encoded once per reply. Usage is never a zero-filled object: whole replies
carry it always, streams only in their last chunk and only when asked for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gateway.reply import ReplyDelta, ReplyEnd, ReplyUsage, TokenChoice
from gateway.wire.sse import encode_data

_ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ReplyIdentity:
    """What every chunk and body of one reply repeats; created_s is Unix time."""

    reply_id: str
    created_s: int
    model: str
    fingerprint: str


class ChatChunks:
    """The events of one streamed reply."""

    def __init__(self, identity: ReplyIdentity, *, include_usage: bool, with_logprobs: bool) -> None:
        head = _head(identity, "chat.completion.chunk")
        self._head = _ENCODE(head)[:-1]
        self._tail = b"}]" + (b',"usage":null}' if include_usage else b"}")
        self._include_usage = include_usage
        self._with_logprobs = with_logprobs

    def opening(self) -> bytes:
        """The chunk that carries the role."""
        return self._chunk(b'{"role":"assistant","content":"","refusal":null}', b"null", b"null")

    def content(self, delta: ReplyDelta) -> bytes:
        """A chunk of content."""
        logprobs = _ENCODE(_logprobs(delta.choices)) if self._with_logprobs else b"null"
        return self._chunk(b'{"content":' + _ENCODE(delta.text) + b"}", logprobs, b"null")

    def closing(self, end: ReplyEnd) -> bytes:
        """The chunk with the finish reason, then the usage chunk when the client asked for it."""
        last = self._chunk(b"{}", b"null", _ENCODE(end.reason))
        if self._include_usage:
            last += encode_data(self._head + b',"choices":[],"usage":' + _ENCODE(_usage(end.usage)) + b"}")
        return last

    def _chunk(self, delta: bytes, logprobs: bytes, reason: bytes) -> bytes:
        choice = b',"choices":[{"index":0,"delta":' + delta + b',"logprobs":' + logprobs + b',"finish_reason":' + reason
        return encode_data(self._head + choice + self._tail)


def render_completion(
    identity: ReplyIdentity, deltas: Sequence[ReplyDelta], end: ReplyEnd, *, with_logprobs: bool
) -> bytes:
    """The body of a reply that was not streamed: the sum of its deltas."""
    choices = (choice for delta in deltas for choice in delta.choices)
    body = _head(identity, "chat.completion") | {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "".join(d.text for d in deltas), "refusal": None},
                "logprobs": _logprobs(choices) if with_logprobs else None,
                "finish_reason": end.reason,
            }
        ],
        "usage": _usage(end.usage),
    }
    return _ENCODE(body)


def _head(identity: ReplyIdentity, kind: str) -> dict[str, object]:
    return {
        "id": identity.reply_id,
        "object": kind,
        "created": identity.created_s,
        "model": identity.model,
        "system_fingerprint": identity.fingerprint,
    }


def _usage(usage: ReplyUsage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _logprobs(choices: Iterable[TokenChoice]) -> dict[str, object]:
    content = [
        _token(choice.text, choice.logprob) | {"top_logprobs": [_token(text, value) for text, value in choice.top]}
        for choice in choices
    ]
    return {"content": content, "refusal": None}


def _token(text: bytes, logprob: float) -> dict[str, object]:
    return {"token": text.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(text)}
