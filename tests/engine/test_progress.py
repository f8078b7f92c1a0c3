"""The progress display: one rewritten line on a terminal, few lines elsewhere, always the last byte count."""

import io

import pytest

from engine.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_gets_first_and_last_line_of_a_step() -> None:
    log = io.StringIO()
    line = ProgressLine(log)
    for done in range(0, 5_000_001, 500_000):
        line.show("downloading", done, 5_000_000)
    line.note("done")
    line.close()
    assert log.getvalue() == "downloading: 0.0 of 5.0 MB\ndownloading: 5.0 of 5.0 MB\ndone\n"


def test_log_gets_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    log = io.StringIO()
    line = ProgressLine(log)
    for _ in range(21):
        line.show("downloading", int(now_s), 100)
        now_s += 1.0
    assert log.getvalue().count("\n") == 5


def test_terminal_rewrites_one_line_and_erases_longer_text() -> None:
    screen = Terminal()
    line = ProgressLine(screen)
    line.show("a long step", 0, 10)
    line.show("a long step", 10, 10)
    line.note("short")
    line.close()
    line.close()
    assert screen.getvalue() == "\ra long step: 0.0 of 0.0 MB\ra long step: 0.0 of 0.0 MB\n\rshort\n"
