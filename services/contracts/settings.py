"""Settings from the environment, once: prefix, types, and no unknown names. Owns the reading, not any service's fields.

Each service declares one frozen msgspec Struct and calls load() from its own settings.py, the only place that passes
os.environ on. A misspelt PREFIX_* variable is an error, because a silent default is worse than a stopped start.
"""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import msgspec.inspect

from contracts.errors import SetupError
from contracts.expectations import describe_refusal
from contracts.home import resolve_home

__all__ = ["load", "read_otlp_endpoint", "resolve_home"]

Settings = TypeVar("Settings", bound=msgspec.Struct)


def load(kind: type[Settings], prefix: str, environ: Mapping[str, str]) -> Settings:
    """Read PREFIX_FIELD for every field of kind; text is converted to the field's type, empty means the default.

    Raises: SetupError naming the variable, its value and what was expected, or the nearest known name.
    """
    known = {f"{prefix}_{field.name.upper()}": field.name for field in msgspec.structs.fields(kind)}
    given: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix + "_"):
            continue
        if variable not in known:
            raise SetupError(f"unknown setting {variable}; known are {', '.join(sorted(known))}")
        if text != "":
            given[known[variable]] = text
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$.")
        variable, value = f"{prefix}_{field.upper()}", given.get(field, "")
        refusal = describe_refusal(variable, value, _field_type(kind, field))
        raise SetupError(refusal or f"{variable}={value!r}: {text}") from error


def _field_type(kind: type[msgspec.Struct], field: str) -> msgspec.inspect.Type:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return next(known.type for known in info.fields if known.name == field)


def read_otlp_endpoint(environ: Mapping[str, str]) -> str | None:
    """OTEL_EXPORTER_OTLP_ENDPOINT, the base URL of an OTLP/HTTP collector; None when unset or OTEL_SDK_DISABLED=true.

    Raises: SetupError naming the variable, its value and what was expected.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    endpoint = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if not endpoint:
        return None
    if not _is_http_url(endpoint):
        raise SetupError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint!r}: expected an http:// or https:// URL with a host, "
            "such as http://127.0.0.1:4318"
        )
    return endpoint


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    has_host = bool(parts.hostname) and port != 0 and not any(char.isspace() for char in text)
    return parts.scheme in ("http", "https") and has_host and not (parts.query or parts.fragment)
