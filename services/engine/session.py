"""The live sequence: which ids the executor's state stands for, and how a request's ids are brought onto it.

Owns the ids, the modes they were computed in, the checkpoints and the reuse rule. Receives ids, hands on logits. It
does not sample, emit events or know requests; the state itself is the executor's.

Reuse: the rows of keys and values stay in place until their positions are computed again, so an executor that cannot
rewind goes back to a checkpoint that lies within the ids shared with these rows, and computes the rest. A checkpoint of
a prompt is taken on the 64-token grid, which no span of a prefill crosses anyway: a later request that starts from it
computes what follows in the same modes as one that starts from nothing.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.runtime.executor import Executor, Logits
from engine.runtime.prefill import GRID_TOKENS, ChunkPacer, next_span
from engine.state.checkpoints import (
    INTERVAL_TOKENS,
    Checkpoint,
    CheckpointRing,
    Mode,
    ModeSpan,
    append_mode,
    cut_modes,
)

_MOST_NAMED = 32  # positions of one request that are kept, the last ones: each cuts the prefill and costs a copy


class Session:
    """One sequence on one executor; used by one thread at a time."""

    def __init__(self, executor: Executor, context_limit: int, chunk_tokens: int, num_checkpoints: int = 0) -> None:
        """num_checkpoints is how many state images may be held; an executor that can rewind needs none."""
        self._executor: Final = executor
        self._ids: NDArray[np.int64] = np.empty(context_limit, dtype=np.int64)
        self._modes: list[ModeSpan] = []  # of the state's positions
        self._checkpoints = CheckpointRing(0 if executor.can_rewind else num_checkpoints)
        self._pacer = ChunkPacer(chunk_tokens)
        self._logits: Logits | None = None
        self.restore_s = 0.0  # what the last sync spent on putting an image back, 0 when it did not

    @property
    def num_tokens(self) -> int:
        """Positions whose state is held."""
        return self._executor.num_tokens

    @property
    def modes(self) -> tuple[ModeSpan, ...]:
        """How these positions were computed; the same ids and modes give the same bits."""
        return tuple(self._modes)

    @property
    def checkpoint_positions(self) -> list[int]:
        """Where the session can go back to, ascending."""
        return self._checkpoints.positions

    @property
    def logits(self) -> Logits:
        """Logits behind the last position; only after prefill or advance."""
        assert self._logits is not None, "no position was computed since the last sync"
        return self._logits

    def sync(self, ids: NDArray[np.int64]) -> int:
        """Go where ids and the sequence agree furthest: go on, go back, or start anew; returns the position.

        At least the last id is left to compute, because its logits are not kept.
        Domain:  1 <= len(ids) < context limit.
        """
        limit = min(len(ids) - 1, max(self.num_tokens, self._checkpoints.last_position))
        differing = np.flatnonzero(ids[:limit] != self._ids[:limit])
        num_shared = int(differing[0]) if len(differing) else limit
        self._logits = None
        self.restore_s = 0.0
        checkpoint = self._checkpoints.best(num_shared)
        best = 0 if checkpoint is None else checkpoint.position
        if best <= self.num_tokens <= num_shared:
            return self.num_tokens
        if checkpoint is not None:
            started_s = time.monotonic()
            self._executor.restore(checkpoint.image)
            self.restore_s = time.monotonic() - started_s
            self._modes = list(checkpoint.modes)
            return checkpoint.position
        kept = self._executor.rewind(num_shared)
        self._modes = cut_modes(self._modes, kept)
        return kept

    def prefill(self, ids: NDArray[np.int64], output_start: int, worth_keeping: Sequence[int] = ()) -> Iterator[int]:
        """Compute ids behind the kept ones; yields how many of them are done, after every span.

        Ids before output_start are a prompt; if the last one lies behind it, it is computed as the generated token it
        is, so that a paused reply goes on with the same bits. worth_keeping are positions to leave a checkpoint at, as
        are the prompt's end and every 4,096th position; each is moved back to the grid.
        """
        first = self.num_tokens
        num_tokens = len(ids)
        batch_end = num_tokens if output_start >= num_tokens else num_tokens - 1
        for stop in self._stops(batch_end, [*worth_keeping[-_MOST_NAMED:], min(output_start, num_tokens) - 1]):
            while self.num_tokens < stop:
                self._prefill_span(ids, stop, want_logits=stop == num_tokens)
                if self.num_tokens == stop and stop % GRID_TOKENS == 0:
                    self.pause()
                yield self.num_tokens - first
        if batch_end < num_tokens:
            self.advance(int(ids[-1]))
            yield num_tokens - first

    def advance(self, token_id: int) -> Logits:
        """Append a generated token; returns the logits behind it, valid until the next call."""
        start = self._begin(np.array([token_id], dtype=np.int64))
        self._logits = self._executor.step(token_id)
        self._commit(start, 1, "step")
        return self._logits

    def advance_many(self, token_ids: list[int]) -> Logits:
        """Append generated tokens, some of them guesses; keep() must follow.

        Shapes:  returns [M, vocab], row j behind token j, valid until the next call.
        """
        ids = np.array(token_ids, dtype=np.int64)
        self._begin(ids)
        self._logits = None
        return self._executor.step_many(ids)

    def keep(self, num_tokens: int) -> None:
        """Of the last advance_many only the first num_tokens tokens happened."""
        self._executor.rollback(num_tokens)
        if num_tokens:
            self._commit(self.num_tokens - num_tokens, num_tokens, "step")

    def pause(self) -> None:
        """Leave a checkpoint where the sequence stands, if checkpoints are of use here and the state is finite."""
        if self._checkpoints.make_room(self.num_tokens):
            self._checkpoints.store(Checkpoint(self._executor.snapshot(), self.modes))

    def drop(self) -> None:
        """Forget everything: the state cannot be trusted."""
        self._logits = None
        self._modes.clear()
        self._checkpoints.clear()
        self._executor.rewind(0)

    def _stops(self, batch_end: int, worth_keeping: Sequence[int]) -> list[int]:
        """Where a prefill to batch_end stops: at checkpoints, ascending, then at its end."""
        if self._checkpoints.capacity == 0:
            return [batch_end] if batch_end > self.num_tokens else []
        wanted = {position // GRID_TOKENS * GRID_TOKENS for position in worth_keeping}
        first_multiple = self.num_tokens // INTERVAL_TOKENS * INTERVAL_TOKENS + INTERVAL_TOKENS
        wanted.update(range(first_multiple, batch_end, INTERVAL_TOKENS))
        wanted.add(batch_end)
        return sorted(stop for stop in wanted if self.num_tokens < stop <= batch_end)

    def _prefill_span(self, ids: NDArray[np.int64], end: int, *, want_logits: bool) -> None:
        span = next_span(self.num_tokens, end, self._pacer.chunk_tokens)
        started_s = time.monotonic()
        taken = ids[span.start : span.end]
        self._begin(taken)
        self._logits = self._executor.prefill(taken, want_logits=want_logits and span.end == end)
        whole = span.start % GRID_TOKENS == 0 and span.end % GRID_TOKENS == 0
        self._commit(span.start, len(taken), "chunk" if whole else "tail")
        self._pacer.measured(len(taken), time.monotonic() - started_s)

    def _begin(self, ids: NDArray[np.int64]) -> int:
        """Before positions are computed: rows that lay there and behind are gone, and with them their checkpoints."""
        start = self.num_tokens
        self._checkpoints.forget_beyond(start)
        self._ids[start : start + len(ids)] = ids
        return start

    def _commit(self, start: int, num_tokens: int, mode: Mode) -> None:
        end = start + num_tokens
        append_mode(self._modes, start, end, mode)
        if mode == "step" and end // INTERVAL_TOKENS > start // INTERVAL_TOKENS:
            self.pause()
