"""One reply without an engine around it: a session on a recording executor, so that logits can be compared bit by bit.

Owns the recording: the row behind every position, as it was when the position was computed last.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from contracts.errors import NumericalError
from contracts.generate import Event, Finished, Tokens
from engine.runtime.executor import Executor, Logits
from engine.runtime.generation import Generation
from engine.runtime.speculate import Speculation
from engine.session import Session
from engine.validate import RequestLimits, make_job
from support.tiny_engine import make_request


class Recorder:
    """Passes every call on; rows maps a position to the bytes of the logits behind it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.rows: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool) -> Logits | None:
        logits = self._executor.prefill(ids, want_logits=want_logits)
        if logits is not None:
            self.rows[self._executor.num_tokens - 1] = logits.tobytes()
        return logits

    def step(self, token_id: int) -> Logits:
        logits = self._executor.step(token_id)
        self.rows[self._executor.num_tokens - 1] = logits.tobytes()
        return logits

    def step_many(self, ids: NDArray[np.int64]) -> Logits:
        start = self._executor.num_tokens
        logits = self._executor.step_many(ids)
        for column, row in enumerate(logits):
            self.rows[start + column] = row.tobytes()
        return logits


class ReplyRunner:
    """Runs requests one after the other on one session."""

    def __init__(
        self,
        executor: Executor,
        *,
        vocab_size: int,
        context_limit: int,
        speculation: Speculation | None = None,
        stop_token_ids: tuple[int, ...] = (),
        num_checkpoints: int = 0,
        guards_repetition: bool = True,
    ) -> None:
        self.recorder = Recorder(executor)
        self.session = Session(self.recorder, context_limit, 128, num_checkpoints)
        self.speculation = speculation or Speculation(None, 0)
        self._limits = RequestLimits(context_limit, vocab_size, stop_token_ids, guards_repetition)
        self.events: list[Event] = []

    def run(self, ids: list[int], max_new_tokens: int, cancel_after: int | None = None, **fields: Any) -> list[int]:
        """New ids of one request; cancelled at the first look behind cancel_after of them. Events stay in `events`."""
        job = make_job(make_request(ids, max_new_tokens, **fields), self._limits)
        generation = Generation(job, self.session, self._limits.vocab_size, self.speculation)
        self.events = []
        new_ids: list[int] = []
        for event in generation.run():
            self.events.append(event)
            if isinstance(event, Tokens):
                new_ids += event.ids
                if cancel_after is not None and len(new_ids) >= cancel_after:
                    job.interrupt.fire("cancelled")
        return new_ids

    def run_to_failure(self, ids: list[int], max_new_tokens: int, **fields: Any) -> tuple[list[int], str]:
        """Ids given before a numerical error, and its message."""
        try:
            self.run(ids, max_new_tokens, **fields)
        except NumericalError as error:
            return [i for event in self.events if isinstance(event, Tokens) for i in event.ids], error.message
        raise AssertionError("the reply did not fail")

    @property
    def finished(self) -> Finished:
        """The last event."""
        event = self.events[-1]
        assert isinstance(event, Finished)
        return event

    def rows(self, start: int, end: int) -> list[bytes]:
        """Logits behind positions start .. end - 1."""
        return [self.recorder.rows[position] for position in range(start, end)]
