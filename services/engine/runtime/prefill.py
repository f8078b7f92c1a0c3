"""How a prompt's uncached part is cut: whole 64-token blocks of the absolute grid in chunks, what is left by itself.

Owns the cuts and the pace, computes nothing. The grid is absolute so that a prompt meets the same blocks wherever reuse
ended. Chunks shrink on a slow machine, because cancellation is seen between them.
"""

from dataclasses import dataclass

GRID_TOKENS = 64
_TARGET_CHUNK_S = 2.0
_NEW_WEIGHT = 0.5  # of the latest chunk in the measured rate


@dataclass(frozen=True, slots=True)
class Span:
    """Positions start .. end - 1, computed in one call."""

    start: int
    end: int


def next_span(start: int, end: int, chunk_tokens: int) -> Span:
    """What to compute next of start .. end: up to the grid, else up to chunk_tokens in whole blocks, else the tail.

    Domain:  start < end; chunk_tokens a positive multiple of 64.
    """
    assert start < end and chunk_tokens > 0 and chunk_tokens % GRID_TOKENS == 0
    if start % GRID_TOKENS:
        return Span(start, min(end, _round_down(start) + GRID_TOKENS))
    whole_blocks = _round_down(end - start)
    return Span(start, start + min(chunk_tokens, whole_blocks) if whole_blocks else end)


class ChunkPacer:
    """The chunk size that takes about two seconds, learned from the chunks before; at most limit_tokens."""

    def __init__(self, limit_tokens: int) -> None:
        self._limit_tokens = limit_tokens
        self._rate_tok_s: float | None = None

    @property
    def chunk_tokens(self) -> int:
        """Tokens of the next chunk: a multiple of 64, 64 at least."""
        if self._rate_tok_s is None:
            return GRID_TOKENS
        return max(GRID_TOKENS, min(self._limit_tokens, _round_down(int(self._rate_tok_s * _TARGET_CHUNK_S))))

    def measured(self, num_tokens: int, duration_s: float) -> None:
        """Learn from a finished span; a short one says nothing about chunks."""
        if num_tokens < GRID_TOKENS or duration_s <= 0.0:
            return
        rate = num_tokens / duration_s
        old = rate if self._rate_tok_s is None else self._rate_tok_s
        self._rate_tok_s = old + _NEW_WEIGHT * (rate - old)


def _round_down(num_tokens: int) -> int:
    return num_tokens // GRID_TOKENS * GRID_TOKENS
