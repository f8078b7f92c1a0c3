"""Cuts of a prefill: cover everything once, whole blocks on the absolute grid, nothing larger than a chunk."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.prefill import ChunkPacer, Span, next_span


def spans(start: int, end: int, chunk_tokens: int) -> list[Span]:
    cut = []
    while start < end:
        cut.append(next_span(start, end, chunk_tokens))
        start = cut[-1].end
    return cut


@given(st.integers(0, 700), st.integers(1, 700), st.sampled_from([64, 128, 512]))
def test_spans_tile_the_range_on_the_grid(start: int, length: int, chunk_tokens: int) -> None:
    cut = spans(start, start + length, chunk_tokens)
    assert cut[0].start == start and cut[-1].end == start + length
    for left, right in pairwise(cut):
        assert left.end == right.start and left.end % 64 == 0
    for span in cut:
        assert 0 < span.end - span.start <= chunk_tokens
        whole = span.start % 64 == 0 and span.end % 64 == 0
        assert whole or span.end - span.start < 64


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 63, [(0, 63)]),
        (0, 64, [(0, 64)]),
        (0, 65, [(0, 64), (64, 65)]),
        (63, 65, [(63, 64), (64, 65)]),
        (10, 300, [(10, 64), (64, 192), (192, 256), (256, 300)]),
        (130, 140, [(130, 140)]),
    ],
)
def test_spans_of_known_ranges(start: int, end: int, expected: list[tuple[int, int]]) -> None:
    assert [(span.start, span.end) for span in spans(start, end, 128)] == expected


def test_pacer_starts_small_and_follows_the_machine() -> None:
    pacer = ChunkPacer(512)
    assert pacer.chunk_tokens == 64
    pacer.measured(64, 0.01)
    assert pacer.chunk_tokens == 512
    for _ in range(12):
        pacer.measured(256, 8.0)
    assert pacer.chunk_tokens == 64
    for _ in range(12):
        pacer.measured(64, 64 / 75)
    assert pacer.chunk_tokens == 128
    pacer.measured(3, 10.0)
    assert pacer.chunk_tokens == 128, "a short span says nothing"
