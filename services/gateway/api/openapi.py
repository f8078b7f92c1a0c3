"""What /openapi.json says of bodies that the gateway parses itself. Owns documentation only; wire/ owns the rules."""

from typing import Any

_STRING = {"type": "string"}
_CONTENT_PART = {"type": "object", "properties": {"type": _STRING, "text": _STRING}, "required": ["type"]}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [_STRING, {"type": "array", "items": _CONTENT_PART}, {"type": "null"}]},
        "tool_call_id": _STRING,
    },
}
_LIMIT = {"type": "integer", "minimum": 1}
_CHAT_SCHEMA = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {
            **_STRING,
            "description": "any name is accepted and echoed; the header x-soloist-model says which model answered",
        },
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "stream": {"type": "boolean", "default": False},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
        "max_tokens": _LIMIT,
        "max_completion_tokens": _LIMIT,
        "stop": {"anyOf": [_STRING, {"type": "array", "items": _STRING}]},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": -1},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        "seed": {"type": "integer"},
        "logit_bias": {"type": "object", "additionalProperties": {"type": "number"}},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "n": {"const": 1},
    },
}
CHAT_BODY: dict[str, Any] = {  # the shape FastAPI asks for
    "requestBody": {"required": True, "content": {"application/json": {"schema": _CHAT_SCHEMA}}}
}
