"""The generate call between gateway and engine: one request, a stream of events.

Owns the shapes and ranges of `POST /v1/generate` and `POST /v1/requests/{id}/cancel`. Does not own their wire encoding
(codec.py) or their meaning (engine/). A stream ends with exactly one Finished or Failed.
"""

from typing import Annotated, Literal, NewType

from msgspec import Meta, Struct

TokenId = NewType("TokenId", int)

Fence = tuple[int, int]
"""(epoch, n): the lease number of the lane's holder, compared as a pair; a lower one is refused as stale_lease."""

NonNegative = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

Tier = Literal["device", "host", "disk", "none"]
FinishReason = Literal["stop", "length", "cancelled", "preempted"]
Guard = Literal["repetition"]
CancelReason = Literal["client", "preempt"]


class Sampling(Struct, frozen=True, forbid_unknown_fields=True):
    """How a token is drawn from the logits; the defaults leave the distribution as the model gives it.

    Domain: temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch that filter off.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: NonNegative = 0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    seed: Seed = 0
    logit_bias: dict[int, Annotated[float, Meta(ge=-100.0, le=100.0)]] = {}


class ImageRef(Struct, frozen=True, forbid_unknown_fields=True):
    """An encoded image named by its embedding; offset is its first pad token's index, grid is [t, h, w] patches."""

    sha256: Sha256
    grid: tuple[Positive, Positive, Positive]
    offset: NonNegative


class Constraint(Struct, frozen=True, forbid_unknown_fields=True):
    """A grammar the output must follow; with after_token_id it starts behind that token (end of reasoning)."""

    kind: Literal["json_schema", "regex", "grammar", "tool_call"]
    value: str
    after_token_id: NonNegative | None = None


class GenerateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One generation as a function of ids, images, sampling and seed (design: everything else is cache).

    Domain: token_ids not empty; output_start is the index where output begins when a resumed request carries tokens it
    already generated, None means behind the last id; checkpoints are positions worth keeping, ascending.
    """

    request_id: Annotated[str, Meta(min_length=1, max_length=128)]
    token_ids: Annotated[list[NonNegative], Meta(min_length=1)]
    max_new_tokens: Positive
    output_start: NonNegative | None = None
    fence: Fence | None = None
    stop_token_ids: list[NonNegative] = []
    sampling: Sampling = Sampling()
    images: list[ImageRef] = []
    constraint: Constraint | None = None
    checkpoints: list[NonNegative] = []
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Stop a request where it stands; a lower fence than the last seen is refused."""

    reason: CancelReason
    fence: Fence | None = None


class TokenLogprob(Struct, frozen=True):
    """Natural-log probability of the chosen id and of the most likely ids, before the filters of Sampling."""

    logprob: float
    top: list[tuple[int, float]]


class Usage(Struct, frozen=True):
    """Exact counts; cached_tokens is the part of prompt_tokens that was not computed again.

    Entry j of the two lists counts drafts in place j + 1 of their round: how many were tried, how many accepted.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by_position: list[int] = []
    accepted_by_position: list[int] = []


class Timings(Struct, frozen=True):
    """Milliseconds on the engine's monotonic clock; ttft_ms counts from arrival in the engine to the first token."""

    queue_ms: float
    restore_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None


class Energy(Struct, frozen=True):
    """Joules of one request; source none means unknown, never zero."""

    prefill_j: float
    decode_j: float
    idle_w: float
    source: Literal["nvml", "rapl", "none"]


class Accepted(Struct, frozen=True, tag="accepted"):
    """The request owns the sequence; cached_tokens of its prompt came from tier."""

    cached_tokens: int
    tier: Tier
    restore_ms: float


class Prefill(Struct, frozen=True, tag="prefill"):
    """done of total uncached prompt tokens are computed; at least one a second while prefill runs."""

    done: int
    total: int


class Tokens(Struct, frozen=True, tag="tokens"):
    """New token ids in order; logprobs has one entry per id when asked for, else None."""

    ids: list[int]
    logprobs: list[TokenLogprob] | None = None


class Finished(Struct, frozen=True, tag="finished"):
    """The stream's regular end; guard says that the engine stopped a reply that only repeated itself (reason stop)."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    energy: Energy | None = None
    guard: Guard | None = None


class Failed(Struct, frozen=True, tag="failed"):
    """The stream's irregular end, and the body of every refused call; code is one of errors.py."""

    code: str
    message: str
    retryable: bool


Event = Accepted | Prefill | Tokens | Finished | Failed
