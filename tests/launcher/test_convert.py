"""`soloist convert` hands its paths on as the caller meant them, although the program runs in another folder."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from launcher.cli import main

ROOT = Path(__file__).resolve().parents[2]


class Replaced(Exception):
    """The process became another program."""


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    """main takes the signals of its process, which is the test run's here."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> list[str]:
    """The command that `soloist convert` becomes when it is called in a folder."""
    commands: list[list[str]] = []

    def become(path: str, command: list[str], environ: dict[str, str]) -> Any:
        commands.append(command)
        raise Replaced

    monkeypatch.chdir(folder)
    monkeypatch.setattr(cli.Context, "prepare", lambda *_: None)
    monkeypatch.setattr(os, "execve", become)
    with pytest.raises(Replaced):
        main(["convert", *arguments], root=ROOT)
    return commands[0][1:]


def test_paths_are_the_caller_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = run(monkeypatch, tmp_path, "src", "--out", "../out/m", "--recipe", "compact", "--name", "x", "--verify")
    source, out = str(tmp_path / "src"), str(tmp_path / ".." / "out" / "m")
    assert command == ["-m", "engine.convert", source, "--out", out, "--recipe", "compact", "--name", "x", "--verify"]


def test_defaults_are_the_program_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, "/a", "--out", "/b") == ["-m", "engine.convert", "/a", "--out", "/b"]


def test_missing_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["convert", "src"], root=ROOT)
    assert caught.value.code == 2 and "--out" in capsys.readouterr().err
