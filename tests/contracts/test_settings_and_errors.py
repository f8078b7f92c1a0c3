"""Settings refuse what they do not know; every error keeps its code through a Failed."""

from typing import Annotated

import pytest
from msgspec import Meta, Struct

from contracts import errors, settings
from contracts.errors import ServiceError, SetupError, from_failed
from contracts.generate import Failed


class Example(Struct, frozen=True):
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    host: str = "127.0.0.1"
    limit: int | None = None


def test_load_converts_and_defaults() -> None:
    got = settings.load(Example, "DEMO", {"DEMO_PORT": "9", "DEMO_HOST": "", "OTHER_PORT": "x", "DEMONSTRATE": "1"})
    assert got == Example(port=9, host="127.0.0.1", limit=None)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"DEMO_PROT": "1"}, "DEMO_PROT"),
        ({"DEMO_PORT": "lots"}, "DEMO_PORT='lots'"),
        ({"DEMO_PORT": "65536"}, "<= 65535"),
        ({"DEMO_LIMIT": "1.5"}, "DEMO_LIMIT='1.5'"),
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
