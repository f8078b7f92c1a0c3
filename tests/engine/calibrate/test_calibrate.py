"""Calibration: the means are those of a whole decoder over the same text, one layer at a time, and they are served."""

import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.model_folder import CENTRES_NAME
from engine.calibrate import __main__ as command
from engine.calibrate import centres as centres_module
from engine.calibrate.centres import measure_centres
from engine.calibrate.streamed import OneLayer
from engine.calibrate.text import NUM_WINDOWS, WINDOW_TOKENS, library_windows
from engine.convert.centring import NotCentred, centre, is_centred, needs_centres
from engine.model_home import read_folder
from engine.progress import ProgressLine
from engine.weights.artifact import Artifact, read_directory
from engine.weights.centres import read_centres
from support.hybrid_checkpoint import TINY_HYBRID, Shape, random_values, stored_values, write_checkpoint
from support.tiny_engine import TINY, make_home
from support.tiny_hybrid import make_decoder

SERVICES = Path(__file__).resolve().parents[3] / "services"
# Two sums over a few thousand fp32 rows of order 1.
TOLERANCE = 2e-5


def run(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, "-m", f"engine.{module}", *map(str, arguments)]
    return subprocess.run(
        command_line, env={"PYTHONPATH": str(SERVICES)}, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.fixture(scope="module")
def artifact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with two attention layers and an MTP head, quantised."""
    shape = Shape(layers=8, heads=4, kv_heads=2)
    path = tmp_path_factory.mktemp("models")
    source = write_checkpoint(path / "source", shape, stored_values(random_values(shape)))
    done = run("convert", source, "--out", path / "model")
    assert done.returncode == 0, done.stderr
    return path / "model"


def open_artifact(path: Path) -> Artifact:
    folder = read_folder(path)
    return Artifact(folder.weights_path, read_directory(path / "weights.json"))


def test_means_are_those_of_the_whole_decoder(artifact_folder: Path) -> None:
    artifact = open_artifact(artifact_folder)
    spec = artifact.directory.spec
    windows = list(np.random.default_rng(0).integers(0, 2000, (3, 128)))
    reports: list[tuple[int, int]] = []
    centres = measure_centres(artifact, windows, lambda *counts: reports.append(counts))
    assert reports == [(index, 9) for index in range(1, 10)]
    decoder = make_decoder(spec, artifact, "fp32", context=256, drafts=1)
    sums = torch.zeros(2, 3, 2, 64, dtype=torch.float64)
    for window in windows:
        decoder.rewind(0)
        decoder.prefill(window, want_logits=False)
        decoder.step(int(window[-1]))  # the pair that the last position has in a calibration
        decoder.snapshot()
        assert decoder._mtp is not None
        for slot, (cache, layer) in enumerate(
            [(decoder._cache, 0), (decoder._cache, 1), (decoder._mtp._layer.mixer.cache, 0)]  # type: ignore[union-attr]
        ):
            view = cache.view(layer, 128)
            sums[0, slot] += view.keys.sum(dim=1)
            sums[1, slot] += view.values.sum(dim=1)
    expected = (sums / (3 * 128)).numpy()
    assert np.abs(centres.keys - expected[0]).max() < TOLERANCE
    assert np.abs(centres.values - expected[1]).max() < TOLERANCE
    assert np.abs(expected).max() > 0.05


def test_one_layer_is_in_memory_at_a_time(artifact_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[OneLayer] = weakref.WeakSet()
    most = 0

    def counted(*arguments: object) -> OneLayer:
        nonlocal most
        layer = OneLayer(*arguments)  # type: ignore[arg-type]
        alive.add(layer)
        most = max(most, len(alive))
        return layer

    monkeypatch.setattr(centres_module, "OneLayer", counted)
    measure_centres(open_artifact(artifact_folder), [np.arange(64)], lambda *_: None)
    assert most == 1


def test_the_command_writes_what_the_engine_reads(artifact_folder: Path, tmp_path: Path) -> None:
    done = run("calibrate", artifact_folder)
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "model is calibrated", done.stderr
    folder = read_folder(artifact_folder)
    folder.verify_digests()
    spec = read_directory(artifact_folder / "weights.json").spec
    found = read_centres(folder, spec)
    assert CENTRES_NAME in folder.manifest.files and np.abs(found.keys).max() > 0
    text = tmp_path / "text.txt"
    text.write_text("Every text has other means. " * 400)
    assert command.main([str(artifact_folder), "--text", str(text)]) == 0
    assert not np.array_equal(read_centres(read_folder(artifact_folder), spec).keys, found.keys)


def test_a_conversion_centres_on_request(tmp_path: Path) -> None:
    """And goes on with it where the folder is there already."""
    out = tmp_path / "tiny-hybrid"
    assert run("convert", TINY_HYBRID, "--out", out, "--recipe", "exact").returncode == 0
    bare, spec = read_folder(out), read_directory(out / "weights.json").spec
    assert not is_centred(bare) and not needs_centres(bare, spec), "its default KV format is not centred"
    assert needs_centres(bare, replace(spec, default_kv_format="rk4v4-e8"))
    for _ in range(2):
        done = run("convert", TINY_HYBRID, "--out", out, "--recipe", "exact", "--calibrate", "--verify")
        assert done.returncode == 0 and is_centred(read_folder(out)), done.stderr
    assert "calibrating" not in done.stderr


def test_a_conversion_says_when_it_could_not_centre(
    artifact_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotCentred, match=f"python -m engine.calibrate {artifact_folder}"):
        centre(read_folder(artifact_folder), ProgressLine(sys.stderr))
    assert capsys.readouterr().err == "calibrating the KV cache\n"


def test_text_is_whole_windows_of_the_models_own_tokens(artifact_folder: Path) -> None:
    windows = library_windows(read_folder(artifact_folder))
    assert [window.shape for window in windows] == [(WINDOW_TOKENS,)] * NUM_WINDOWS
    assert len({window.tobytes() for window in windows}) == NUM_WINDOWS


def test_refusals_are_one_clear_line(artifact_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(*arguments: object) -> str:
        assert command.main(list(map(str, arguments))) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    assert "convert it first" in refusal(make_home(tmp_path / "home") / "models" / TINY.name)
    assert "manifest.json" in refusal(TINY_HYBRID)
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert f"fewer than {WINDOW_TOKENS} tokens" in refusal(artifact_folder, "--text", short)
    short.write_bytes(b"\xff\xfe")
    assert "cannot be read as UTF-8" in refusal(artifact_folder, "--text", short)
