"""One request as the gateway means it, whatever API it came through. Owns the internal request model.

Every dialect in wire/ parses into ChatRequest and nothing behind wire/ knows which dialect it was. Does not validate:
a ChatRequest that exists is valid.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar

from contracts.generate import Sampling

Role = Literal["system", "user", "assistant", "tool"]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; its text parts in order (no part and an empty one mean the same: empty content)."""

    role: Role
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """What the client said about sampling; None leaves the choice to the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None

    def resolve(self, default: Sampling, drawn_seed: int) -> Sampling:
        """The sampling to run with: the client's values over the model's, and a seed in any case."""
        return Sampling(
            temperature=_first(self.temperature, default.temperature),
            top_p=_first(self.top_p, default.top_p),
            top_k=_first(self.top_k, default.top_k),
            min_p=_first(self.min_p, default.min_p),
            presence_penalty=_first(self.presence_penalty, default.presence_penalty),
            frequency_penalty=_first(self.frequency_penalty, default.frequency_penalty),
            repetition_penalty=_first(self.repetition_penalty, default.repetition_penalty),
            seed=_first(self.seed, drawn_seed),
            logit_bias=self.logit_bias or {},
        )


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue; max_tokens None means up to the window, logprobs counts alternatives per token."""

    model: str
    messages: tuple[Message, ...]
    sampling: SamplingWish
    max_tokens: int | None
    stop: tuple[str, ...]
    logprobs: int | None
    session_key: str | None
    warnings: tuple[str, ...] = ()


def _first(wish: Value | None, default: Value) -> Value:
    return default if wish is None else wish
