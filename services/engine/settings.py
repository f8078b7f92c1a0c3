"""The engine's settings: the one file of this service that reads the environment. Owns names, defaults and their help.

Read once at start, then immutable; a misspelt ENGINE_* variable stops the start. What "auto" means is decided in
startup.py and printed there with its reason.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.errors import SetupError
from contracts.settings import load, read_otlp_endpoint, resolve_home

# One row at a time NumPy's BLAS is bound by memory, a second thread only gets in the way. Waiting threads must sleep,
# not spin: with another process on the cores a spinning team makes every parallel region ten times slower.
_LIBRARY_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class EngineSettings(Struct, frozen=True):
    """Each field is the variable ENGINE_<NAME>; None means auto."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8001
    model: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "smollm2-135m"
    context: Annotated[int, Meta(ge=64)] | None = None
    kv_format: Literal["auto", "fp32", "bf16", "int8", "rk4v4-e8"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory_bytes: Annotated[int, Meta(ge=1)] | None = None
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    chunk_tokens: Annotated[int, Meta(ge=64, le=65536, multiple_of=64)] = 512
    speculation: Literal["auto", "off", "ngram", "mtp"] = "auto"
    drafts: Annotated[str, Meta(pattern="^(auto|[0-5])$")] = "auto"
    repetition_guard: Literal["on", "off"] = "on"
    checkpoint_bytes: Annotated[int, Meta(ge=0)] | None = None
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 16 << 20
    log_level: Literal["debug", "info", "warning", "error"] = "info"


HELP = """\
Serve one model as token ids in, token events out. Settings are environment variables:

  ENGINE_HOST            address to listen on (127.0.0.1)
  ENGINE_PORT            port to listen on, 0 takes a free one (8001)
  ENGINE_MODEL           a model that `python -m engine.models` lists (smollm2-135m)
  ENGINE_CONTEXT         window in tokens, prompt and reply together (the model's)
  ENGINE_KV_FORMAT       auto, bf16, int8, rk4v4-e8 or fp32: how keys and values are kept (auto: the model's default)
  ENGINE_DEVICE          auto, cpu or cuda (auto: cuda when torch sees one)
  ENGINE_MEMORY_BYTES    the most the memory plan may take (what the machine has free)
  ENGINE_THREADS         threads of the prefill (CPUs this process may use)
  ENGINE_CHUNK_TOKENS    the most prompt tokens computed at once, a multiple of 64 (512)
  ENGINE_SPECULATION     auto, off, ngram (repeat what the text did before) or mtp (the model's own head); replies
                         are the same with all of them (auto: mtp, else ngram, where several tokens cost less at once)
  ENGINE_DRAFTS          auto or 0 to 5: tokens guessed in a round (auto: 3)
  ENGINE_REPETITION_GUARD  on or off: end a reply that repeats one block of tokens for 1,024 to 4,096 tokens (on)
  ENGINE_CHECKPOINT_BYTES  host memory for recurrent states to go back to (a quarter of what is available)
  ENGINE_MAX_BODY_BYTES  the largest request body (16777216)
  ENGINE_LOG_LEVEL       debug, info, warning or error (info)
  SOLOIST_HOME           where model folders are ($XDG_CACHE_HOME/soloist, else ~/.cache/soloist)
  OTEL_EXPORTER_OTLP_ENDPOINT  base URL of an OTLP/HTTP collector (none: nothing is exported)

Exit codes: 0 stopped by a signal, 1 failed (address in use, device lost), 2 refused (setting, model or memory).
"""


class EngineConfig(Struct, frozen=True):
    """Settings with what comes from shared variables."""

    settings: EngineSettings
    home: Path
    otlp_endpoint: str | None


def read_config(environ: Mapping[str, str] | None = None) -> EngineConfig:
    """Raises: SetupError naming the variable, its value and what was expected."""
    variables = os.environ if environ is None else environ
    settings = load(EngineSettings, "ENGINE", variables)
    if not settings.host:
        raise SetupError("ENGINE_HOST is empty; expected an address such as 127.0.0.1")
    return EngineConfig(settings, resolve_home(variables), read_otlp_endpoint(variables))


def read_environment() -> dict[str, str]:
    """A copy of the environment, for resolve_home and for the environment of child processes."""
    return dict(os.environ)


def library_environment() -> dict[str, str]:
    """A copy of the environment with what the numerical libraries read once, when they are loaded."""
    return _LIBRARY_VARIABLES | os.environ
