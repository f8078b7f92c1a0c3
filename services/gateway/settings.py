"""The gateway's settings: GATEWAY_* variables, the model home and the OTLP endpoint. The only file that reads them.

Read once at start, then immutable; a misspelt GATEWAY_* variable stops the start.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from contracts.errors import SetupError
from contracts.settings import load, read_otlp_endpoint, resolve_home
from gateway.wire.chat_messages import MAX_MESSAGES

Seconds = Annotated[float, Meta(gt=0.0, le=86_400.0)]
Count = Annotated[int, Meta(ge=1)]


class GatewaySettings(Struct, frozen=True):
    """Each field is the variable GATEWAY_<NAME>; times are seconds.

    max_messages: messages of one request, their content parts included.
    first_beat_s: until then a streamed request may still be refused with a plain HTTP error.
    beat_s: the longest silence towards a streaming client. engine_idle_s: an engine silent for longer counts as lost.
    engine_wait_s: patience with an engine that vanished before the first token. stall_s: a client that reads nothing
    for longer counts as gone. drain_s: what running requests get after SIGTERM.
    """

    redis_url: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    engine_url: str = "http://127.0.0.1:8001"
    model: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "smollm2-135m"
    queue_limit: Count = 256
    max_body_bytes: Count = 20 << 20
    max_nesting: Annotated[int, Meta(ge=8, le=400)] = 128
    max_messages: Count = MAX_MESSAGES
    first_beat_s: Seconds = 0.25
    beat_s: Annotated[float, Meta(gt=0.0, le=10.0)] = 8.0
    engine_idle_s: Seconds = 60.0
    engine_wait_s: Seconds = 15.0
    stall_s: Seconds = 60.0
    drain_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 20.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class GatewayConfig(Struct, frozen=True):
    """Settings with what comes from shared variables: SOLOIST_HOME and OTEL_EXPORTER_OTLP_ENDPOINT."""

    settings: GatewaySettings
    home: Path
    otlp_endpoint: str | None


def read_config(environ: Mapping[str, str] | None = None) -> GatewayConfig:
    """Raises: SetupError naming the variable, its value and what was expected."""
    variables = os.environ if environ is None else environ
    settings = load(GatewaySettings, "GATEWAY", variables)
    if not settings.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise SetupError(
            f"GATEWAY_REDIS_URL={settings.redis_url!r}: expected redis://HOST:PORT/DB, rediss:// or unix://"
        )
    engine_url = settings.engine_url.rstrip("/")
    if not engine_url.startswith(("http://", "https://")) or "," in engine_url or " " in engine_url:
        raise SetupError(f"GATEWAY_ENGINE_URL={settings.engine_url!r}: expected one http:// or https:// address")
    return GatewayConfig(
        settings=msgspec.structs.replace(settings, engine_url=engine_url),
        home=resolve_home(variables),
        otlp_endpoint=read_otlp_endpoint(variables),
    )


def read_home() -> Path:
    """The model home alone, for tools that need no other setting."""
    return resolve_home(os.environ)


def child_environment(**variables: str) -> dict[str, str]:
    """This process's environment for a child process, without settings of ours but these."""
    own = ("GATEWAY_", "ENGINE_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)} | variables
