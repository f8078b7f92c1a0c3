"""What an engine says of itself at `GET /v1/info` and `GET /health/ready`. Owns these shapes only."""

from typing import Literal

from msgspec import Struct

from contracts.generate import Fence


class Region(Struct, frozen=True):
    """One named span of the memory plan."""

    name: str
    bytes: int


class MemoryReport(Struct, frozen=True):
    """The bound plan: regions, their sum, and what the device has left (None when it has no fixed size)."""

    regions: list[Region]
    total_bytes: int
    left_bytes: int | None


class Rates(Struct, frozen=True):
    """Tokens a second the engine measured on itself, None before the first request."""

    prefill_tok_s: float | None
    decode_tok_s: float | None


class EngineInfo(Struct, frozen=True):
    """Identity, limits, memory plan and last fence of a running engine."""

    model_id: str
    family: str
    context_limit: int
    vocab_size: int
    tokenizer_sha256: str
    stop_token_ids: list[int]
    kv_format: str
    speculation: str
    executor: str
    memory: MemoryReport
    rates: Rates
    fence: Fence | None
    version: str


class Readiness(Struct, frozen=True):
    """Body of `/health/ready`: 200 when ready, else 503; progress 0..1 is the share of start-up done."""

    status: Literal["loading", "ready", "draining", "failed"]
    progress: float
    message: str | None = None
