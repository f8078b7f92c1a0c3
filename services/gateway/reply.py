"""A reply on its way to the client, whatever API it goes out through. Owns the internal reply model and its receiver.

chat_service pushes these into a ReplySink; each dialect in wire/ and api/ is one sink. A reply is start, deltas and
exactly one end; any failure is an exception instead of the end.
"""

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A shown token's bytes and natural-log probability, with the likeliest tokens at its place."""

    text: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclass(frozen=True, slots=True)
class ReplyStart:
    """The engine has taken the request; wait_s is the time the lane took to come."""

    prompt_tokens: int
    cached_tokens: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """Text to append to the content; choices has the tokens whose text begins in it, when they were asked for."""

    text: str
    choices: tuple[TokenChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """Exact token counts of one reply; reasoning tokens are a part of the completion."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """The regular end; stop_string is the one that matched, if any."""

    reason: Literal["stop", "length"]
    usage: ReplyUsage
    stop_string: str | None = None


class ReplySink(Protocol):
    """Where a reply goes. start, delta and end only take note; flush sends what was noted. One task calls, in order."""

    @property
    def has_notes(self) -> bool:
        """Whether flush would send anything."""

    async def keep_alive(self) -> None:
        """Nothing to send for a while: show the client that the request lives."""

    async def flush(self) -> None:
        """Send what was noted since the last flush."""

    def start(self, start: ReplyStart) -> None:
        """The first note."""

    def delta(self, delta: ReplyDelta) -> None:
        """More content; never empty."""

    def end(self, end: ReplyEnd) -> None:
        """The last note of a reply that did not fail."""
