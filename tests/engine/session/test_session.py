"""The live sequence: what is reused, what is computed and in which mode, what is left behind."""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.runtime.executor import Logits
from engine.session import Session


class RecordingExecutor:
    """Remembers its calls; can be told that its state only goes back to multiples of grid."""

    name = "recording"
    max_columns = 1
    shares_columns = False
    can_rewind = True
    mtp = None

    def __init__(self, grid: int = 1) -> None:
        self._grid = grid
        self.ids: list[int] = []
        self.calls: list[tuple[str, int, int]] = []

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool) -> Logits | None:
        self.calls.append(("prefill", self.num_tokens, self.num_tokens + len(ids)))
        self.ids += ids.tolist()
        return np.zeros(4, dtype=np.float32) if want_logits else None

    def step(self, token_id: int) -> Logits:
        self.calls.append(("step", self.num_tokens, self.num_tokens + 1))
        self.ids.append(token_id)
        return np.zeros(4, dtype=np.float32)

    def rewind(self, num_tokens: int) -> int:
        del self.ids[num_tokens // self._grid * self._grid :]
        return self.num_tokens


def as_ids(values: range | list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def run(session: Session, ids: NDArray[np.int64], output_start: int | None = None) -> tuple[int, list[int]]:
    cached = session.sync(ids)
    return cached, list(session.prefill(ids, len(ids) if output_start is None else output_start))


def test_the_longest_common_prefix_is_kept() -> None:
    executor = RecordingExecutor()
    session = Session(executor, 1000, 128)
    assert run(session, as_ids(range(100)))[0] == 0
    for ids, kept in (
        (as_ids(range(150)), 100),
        (as_ids(range(150)), 149),  # all known: the last one is computed for its logits
        (as_ids(range(20)), 19),
        (as_ids([*range(10), 999, *range(11, 40)]), 10),
        (as_ids([7]), 0),
        (as_ids([7, 8]), 1),
    ):
        assert run(session, ids)[0] == kept
        assert executor.ids == ids.tolist()


def test_prefill_reports_progress_over_grid_spans() -> None:
    executor = RecordingExecutor()
    session = Session(executor, 1000, 128)
    run(session, as_ids(range(30)))
    executor.calls.clear()
    cached, progress = run(session, as_ids(range(200)))
    assert cached == 30 and progress[-1] == 170 and progress == sorted(progress)
    assert executor.calls[0] == ("prefill", 30, 64) and executor.calls[-1] == ("prefill", 192, 200)
    assert all(kind == "prefill" for kind, _, _ in executor.calls)
    assert session.logits.shape == (4,)


def test_an_executor_that_rewinds_further_is_followed() -> None:
    executor = RecordingExecutor(grid=64)
    session = Session(executor, 1000, 128)
    run(session, as_ids(range(150)))
    assert run(session, as_ids([*range(140), 5]))[0] == 128
    assert executor.ids == [*range(140), 5]


def test_a_resumed_reply_computes_its_last_token_as_a_generated_one() -> None:
    executor = RecordingExecutor()
    session = Session(executor, 1000, 128)
    run(session, as_ids(range(70)))
    for token_id in (70, 71, 72):
        session.advance(token_id)
    executor.calls.clear()
    cached, progress = run(session, as_ids(range(74)), output_start=70)
    assert (cached, progress) == (73, [1])
    assert executor.calls == [("step", 73, 74)]
    session.drop()
    executor.calls.clear()
    run(session, as_ids(range(74)), output_start=70)
    assert executor.calls == [("prefill", 0, 64), ("prefill", 64, 73), ("step", 73, 74)]


def test_stopping_between_spans_keeps_what_was_computed() -> None:
    executor = RecordingExecutor()
    session = Session(executor, 1000, 64)
    ids = as_ids(range(300))
    session.sync(ids)
    prefill = session.prefill(ids, 300)
    next(prefill)
    next(prefill)
    prefill.close()
    assert session.sync(ids) == 128
    with pytest.raises(AssertionError, match="no position was computed"):
        _ = session.logits


def test_drop_forgets_everything() -> None:
    session = Session(RecordingExecutor(), 1000, 64)
    run(session, as_ids(range(100)))
    session.drop()
    assert session.num_tokens == 0 and session.sync(as_ids(range(100))) == 0
