"""JSON and NDJSON for every contract message: one encoder, one decoder per message. Owns bytes, not meaning.

Unknown fields, wrong types and values out of range raise InvalidRequest with the path and the limit.
"""

import re
from typing import TypeVar

import msgspec

from contracts.engine_info import EngineInfo, Readiness
from contracts.errors import InvalidRequest
from contracts.generate import CancelRequest, Event, Failed, GenerateRequest
from contracts.model_folder import ModelManifest, TensorDirectory

Message = TypeVar("Message")

_LIMIT = re.compile(r"Expected `(int|float)` ([<>]=?) (\S+)")
_NOUNS = {"int": "a whole number", "float": "a number"}

_ENCODER = msgspec.json.Encoder()
_GENERATE = msgspec.json.Decoder(GenerateRequest)
_CANCEL = msgspec.json.Decoder(CancelRequest)
_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_INFO = msgspec.json.Decoder(EngineInfo)
_READINESS = msgspec.json.Decoder(Readiness)
_FAILED = msgspec.json.Decoder(Failed)
_MANIFEST = msgspec.json.Decoder(ModelManifest)
_TENSORS = msgspec.json.Decoder(TensorDirectory)


def encode(message: msgspec.Struct) -> bytes:
    """One message as compact JSON without a newline."""
    return _ENCODER.encode(message)


def encode_line(event: Event) -> bytes:
    """One event as a line of an NDJSON stream."""
    return _ENCODER.encode(event) + b"\n"


def decode_generate_request(body: bytes) -> GenerateRequest:
    """Raises: InvalidRequest with the field's path."""
    return _decode(_GENERATE, body)


def decode_cancel_request(body: bytes) -> CancelRequest:
    """Raises: InvalidRequest with the field's path."""
    return _decode(_CANCEL, body)


def decode_event(line: bytes) -> Event:
    """Raises: InvalidRequest when the line is not one event."""
    return _decode(_EVENT, line)


def decode_engine_info(body: bytes) -> EngineInfo:
    """Raises: InvalidRequest with the field's path."""
    return _decode(_INFO, body)


def decode_readiness(body: bytes) -> Readiness:
    """Raises: InvalidRequest with the field's path."""
    return _decode(_READINESS, body)


def decode_failed(body: bytes) -> Failed:
    """Raises: InvalidRequest when the body is no Failed."""
    return _decode(_FAILED, body)


def decode_manifest(body: bytes) -> ModelManifest:
    """Raises: InvalidRequest with the field's path."""
    return _decode(_MANIFEST, body)


def decode_tensor_directory(body: bytes) -> TensorDirectory:
    """Raises: InvalidRequest with the field's path."""
    return _decode(_TENSORS, body)


def _decode(decoder: "msgspec.json.Decoder[Message]", body: bytes) -> Message:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        raise InvalidRequest(_in_words(text), param=path.strip("`").removeprefix("$.") or None) from error
    except msgspec.DecodeError as error:
        if not body.strip():
            raise InvalidRequest("the body is empty; expected JSON") from error
        raise InvalidRequest(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("JSON is nested too deeply") from error


def _in_words(text: str) -> str:
    """The decoder's words for a number that a field cannot hold, for people; the rest as it is."""
    if text == "Number out of range":
        return "number out of range: beyond what a 64-bit float holds"
    limit = _LIMIT.fullmatch(text)
    return f"must be {_NOUNS[limit[1]]} {limit[2]} {limit[3]}" if limit else text
