"""The live sequence: which ids the executor's state stands for, and how a request's ids are brought onto it.

Owns the ids and the reuse rule. Receives ids, hands on logits. It does not sample, emit events or know requests; the
state itself is the executor's.
"""

import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.runtime.executor import Executor, Logits
from engine.runtime.prefill import ChunkPacer, next_span


class Session:
    """One sequence on one executor; used by one thread at a time."""

    def __init__(self, executor: Executor, context_limit: int, chunk_tokens: int) -> None:
        self._executor: Final = executor
        self._ids: NDArray[np.int64] = np.empty(context_limit, dtype=np.int64)
        self._pacer = ChunkPacer(chunk_tokens)
        self._logits: Logits | None = None

    @property
    def num_tokens(self) -> int:
        """Positions whose state is held."""
        return self._executor.num_tokens

    @property
    def logits(self) -> Logits:
        """Logits behind the last position; only after prefill or advance."""
        assert self._logits is not None, "no position was computed since the last sync"
        return self._logits

    def sync(self, ids: NDArray[np.int64]) -> int:
        """Keep the longest common prefix, drop the rest; returns how many positions are kept.

        At least the last id is left to compute, because its logits are not kept.
        Domain:  1 <= len(ids) < context limit.
        """
        limit = min(len(ids) - 1, self.num_tokens)
        differing = np.flatnonzero(ids[:limit] != self._ids[:limit])
        num_shared = int(differing[0]) if len(differing) else limit
        self._logits = None
        return self._executor.rewind(num_shared)

    def prefill(self, ids: NDArray[np.int64], output_start: int) -> Iterator[int]:
        """Compute ids behind the kept ones; yields how many of them are done, after every span.

        Ids before output_start are a prompt; if the last one lies behind it, it is computed as the generated token it
        is, so that a paused reply goes on with the same bits.
        """
        first = self.num_tokens
        num_tokens = len(ids)
        batch_end = num_tokens if output_start >= num_tokens else num_tokens - 1
        while self.num_tokens < batch_end:
            span = next_span(self.num_tokens, batch_end, self._pacer.chunk_tokens)
            started_s = time.monotonic()
            self._logits = self._executor.prefill(ids[span.start : span.end], want_logits=span.end == num_tokens)
            self._ids[span.start : span.end] = ids[span.start : span.end]
            self._pacer.measured(span.end - span.start, time.monotonic() - started_s)
            yield self.num_tokens - first
        if batch_end < num_tokens:
            self.advance(int(ids[-1]))
            yield num_tokens - first

    def advance(self, token_id: int) -> Logits:
        """Append a generated token; returns the logits behind it, valid until the next call."""
        self._ids[self.num_tokens] = token_id
        self._logits = self._executor.step(token_id)
        return self._logits

    def drop(self) -> None:
        """Forget everything: the state cannot be trusted."""
        self._logits = None
        self._executor.rewind(0)
