"""Reading a JSON body that a stranger wrote: every value is checked and every complaint names its place and its value.

Owns types, ranges and paths (`messages[1].content[0]`). null counts as absent, unknown fields are left alone. Does not
know any dialect.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec

from contracts.errors import InvalidRequest

_MAX_SHOWN_CHARS = 60
# Smaller objects hold no array worth counting here.
_MIN_COUNTED_BYTES = 128
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def decode_body(body: bytes, max_nesting: int) -> "Fields":
    """The body as an object.

    Raises: InvalidRequest when it is no JSON, no object, or nested deeper than max_nesting.
    """
    if not body.strip():
        raise InvalidRequest("the request body is empty")
    try:
        value = _decode(body)
    except RecursionError as error:
        raise InvalidRequest(f"the body is nested too deeply; the limit is {max_nesting} levels") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {_kind(value)}")
    _check_nesting(value, max_nesting)
    return Fields(value, "")


def count_items(body: bytes, outer: str, inner: str) -> int:
    """Items of the body's array outer, with those of the arrays inner of its objects; 0 when there are none.

    Builds none of the values, so that a body of a million small ones is refused before it costs anything.
    """
    try:
        items = _RAW_ARRAY.decode(_RAW_OBJECT.decode(body)[outer])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return 0  # decode_body says what is wrong
    return len(items) + sum(_count_inner(item, inner) for item in items if len(item) > _MIN_COUNTED_BYTES)


def _count_inner(item: msgspec.Raw, inner: str) -> int:
    try:
        return len(_RAW_ARRAY.decode(_RAW_OBJECT.decode(item)[inner]))
    except (msgspec.DecodeError, RecursionError, KeyError):
        return 0


class Fields:
    """One object of the body and its path; readers return None for what is absent."""

    def __init__(self, values: Mapping[str, object], path: str) -> None:
        self._values = values
        self.path = path

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def where(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def raw(self, name: str) -> object:
        """The field's value unchecked."""
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            self._refuse(name, "a string", value)
        return value

    def boolean(self, name: str) -> bool | None:
        """true or false."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> int | None:
        """A whole number from low to high."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, f"a whole number{_range(low, high)}", value)
        self._check_range(name, value, low, high)
        return value

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number from low to high; above excludes low itself."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, f"a number{_range(low, high)}", value)
        if above and value <= low:
            self._refuse(name, f"above {low:g}", value)
        self._check_range(name, value, low, high)
        return float(value)

    def array(self, name: str) -> Sequence[object] | None:
        """An array, items unchecked."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, list):
            self._refuse(name, "an array", value)
        return value

    def nested(self, name: str) -> "Fields | None":
        """An object."""
        value = self._values.get(name)
        return None if value is None else as_object(value, self.where(name))

    def _check_range(self, name: str, value: float, low: float | None, high: float | None) -> None:
        if (low is not None and value < low) or (high is not None and value > high):
            self._refuse(name, _range(low, high).removeprefix(" of").lstrip(), value)

    def _refuse(self, name: str, expected: str, value: object) -> NoReturn:
        refuse(self.where(name), expected, value)


def as_object(value: object, path: str) -> Fields:
    """The value as an object at that path."""
    if not isinstance(value, dict):
        refuse(path, "an object", value)
    return Fields(value, path)


def refuse(path: str, expected: str, value: object) -> NoReturn:
    """Raises: InvalidRequest that names the place, what belongs there and what was there."""
    raise InvalidRequest(f"{path} must be {expected}, got {show(value)}", param=path)


def show(value: object) -> str:
    """A value as it appears in a message: short values themselves, others by their kind."""
    if isinstance(value, dict | list):
        return _kind(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}... ({len(text)} characters)"


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {_plain(low)} to {_plain(high)}"
    return f" of at least {_plain(low)}" if low is not None else ""


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError as error:  # a number out of range
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except msgspec.DecodeError as error:
        if b"\\ud" in body or b"\\uD" in body:
            return _decode_lone_surrogates(body)
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error


def _decode_lone_surrogates(body: bytes) -> object:
    """JavaScript clients escape halves of cut characters; each half becomes U+FFFD and the conversation goes on."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    return _replace_surrogates(value)


def _replace_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_nesting(value: object, max_nesting: int) -> None:
    level: list[object] = [value]
    for _ in range(max_nesting):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)  # type: ignore[attr-defined]
            if type(child) in (dict, list)
        ]
        if not level:
            return
    raise InvalidRequest(f"the body is nested too deeply; the limit is {max_nesting} levels")
