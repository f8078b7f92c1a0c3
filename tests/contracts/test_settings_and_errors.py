"""Settings refuse what they do not know; every error keeps its code through a Failed."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from contracts import errors, settings
from contracts.errors import ServiceError, SetupError, from_failed
from contracts.generate import Failed


class Example(Struct, frozen=True):
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    host: str = "127.0.0.1"
    limit: int | None = None
    context: Annotated[int, Meta(ge=64)] | None = None
    chunk: Annotated[int, Meta(ge=64, le=256, multiple_of=64)] = 64
    wait_s: Annotated[float, Meta(gt=0.0, le=9.5)] = 1.0
    device: Literal["auto", "cpu"] = "auto"
    name: Annotated[str, Meta(pattern="^[a-z]+$")] = "a"
    fast: bool = False


def test_load_converts_and_defaults() -> None:
    got = settings.load(Example, "DEMO", {"DEMO_PORT": "9", "DEMO_HOST": "", "OTHER_PORT": "x", "DEMONSTRATE": "1"})
    assert got == Example(port=9, host="127.0.0.1", limit=None)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"DEMO_PROT": "1"}, "DEMO_PROT"),
        ({"DEMO_PORT": "lots"}, "DEMO_PORT='lots' is not a whole number; it must be from 0 to 65535"),
        ({"DEMO_PORT": "65536"}, "DEMO_PORT must be from 0 to 65535, got 65536"),
        ({"DEMO_LIMIT": "1.5"}, "DEMO_LIMIT='1.5' is not a whole number"),
        ({"DEMO_CONTEXT": "abc"}, "DEMO_CONTEXT='abc' is not a whole number; it must be at least 64"),
        ({"DEMO_CONTEXT": "3"}, "DEMO_CONTEXT must be at least 64, got 3"),
        ({"DEMO_CHUNK": "65"}, "DEMO_CHUNK must be from 64 to 256 and a multiple of 64, got 65"),
        ({"DEMO_WAIT_S": "soon"}, "DEMO_WAIT_S='soon' is not a number; it must be more than 0 and at most 9.5"),
        ({"DEMO_WAIT_S": "nan"}, "DEMO_WAIT_S must be more than 0 and at most 9.5, got nan"),
        ({"DEMO_DEVICE": "tpu"}, "DEMO_DEVICE='tpu' is not one of auto, cpu"),
        ({"DEMO_NAME": "A"}, "DEMO_NAME='A' does not match ^[a-z]+$"),
        ({"DEMO_FAST": "maybe"}, "DEMO_FAST='maybe' is neither true nor false"),
    ],
)
def test_load_refuses_naming_variable_and_value(environ: dict[str, str], text: str) -> None:
    with pytest.raises(SetupError, match="DEMO_") as caught:
        settings.load(Example, "DEMO", environ)
    assert text in caught.value.message


@pytest.mark.parametrize(
    "url",
    ["nonsense", "localhost:4318", "http://", "ftp://h:1", "http://h:port", "http://h:0", "http://a b", "http://:1"],
)
def test_a_collector_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="expected an http:// or https:// URL with a host") as caught:
        settings.read_otlp_endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={url!r}" in caught.value.message


@pytest.mark.parametrize("url", ["http://c:4318", "https://collector/base/", "http://[::1]:4318"])
def test_a_collector_is_read_unless_switched_off(url: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    assert settings.read_otlp_endpoint(environ) == url
    assert settings.read_otlp_endpoint(environ | {"OTEL_SDK_DISABLED": "TRUE"}) is None
    assert settings.read_otlp_endpoint({}) is None


def kinds(kind: type[ServiceError]) -> list[type[ServiceError]]:
    return [kind] + [deep for child in kind.__subclasses__() for deep in kinds(child)]


def test_codes_are_unique_up_to_the_stated_pair() -> None:
    codes = [kind.code for kind in kinds(ServiceError)]
    assert sorted(c for c in set(codes) if codes.count(c) > 1) == ["server_is_overloaded"]


@pytest.mark.parametrize("kind", [k for k in kinds(ServiceError) if k is not errors.ContextTooLong])
def test_error_survives_a_failed(kind: type[ServiceError]) -> None:
    back = from_failed(kind("limit is 5, got 6").to_failed())
    assert (back.code, back.retryable, back.message) == (kind.code, kind.retryable, "limit is 5, got 6")


def test_unknown_code_keeps_its_message() -> None:
    back = from_failed(Failed(code="from_the_future", message="hello", retryable=True))
    assert type(back) is ServiceError and "from_the_future: hello" in back.message
