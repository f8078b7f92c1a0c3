"""`python -m engine.debug logits` on every kind of checkpoint, and what it refuses, as a process and in this one."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine import debug
from engine.model.positions import PlacedImage
from engine.registry import lookup
from support.hybrid_checkpoint import TINY_HYBRID
from support.tiny_engine import TINY, make_home
from support.tiny_hybrid import Floats, Hybrid, Shape

MakeHybrid = Callable[[Shape], Hybrid]

SERVICES = Path(__file__).resolve().parents[3] / "services"
SHAPE = Shape(head_dim=64, mtp=True)
TOLERANCE = 1e-4


@pytest.fixture
def ids_path(tmp_path: Path) -> Path:
    return write_ids(tmp_path / "ids.json", list(range(3, 153)))


def write_ids(path: Path, ids: list[int]) -> Path:
    path.write_text(json.dumps(ids))
    return path


def logits(*arguments: object) -> Floats:
    assert debug.main(["logits", *map(str, arguments)]) == 0
    scores: Floats = np.load(arguments[2])  # type: ignore[arg-type]
    return scores


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert debug.main(["logits", *map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("debug: ")
    return message


def test_a_folder_of_the_library_gives_its_logits(make_hybrid: MakeHybrid, tmp_path: Path, ids_path: Path) -> None:
    """The command as a user runs it; the other cases call it in this process."""
    hybrid, out = make_hybrid(SHAPE), tmp_path / "out"
    command = [sys.executable, "-m", "engine.debug", "logits", hybrid.folder, ids_path, out, "--chunk", "37"]
    done = subprocess.run(command, env={"PYTHONPATH": str(SERVICES)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    scores, expected = np.load(out), hybrid.logits(np.arange(3, 153))
    assert scores.dtype == np.float32 and np.abs(scores - expected).max() <= TOLERANCE * expected.std()


def test_chunks_and_steps_are_what_they_say(make_hybrid: MakeHybrid, tmp_path: Path, ids_path: Path) -> None:
    hybrid, out, ids = make_hybrid(SHAPE), tmp_path / "out.npy", np.arange(3, 153)
    decoder = hybrid.decoder()
    assert np.array_equal(logits(hybrid.folder, ids_path, out, "--chunk", 64), decoder.score(ids))
    decoder.rewind(0)
    decoder.score(ids[:64])
    stepped = np.array([decoder.step(int(token_id)).copy() for token_id in ids[64:140]])
    replayed = logits(hybrid.folder, ids_path, out, "--steps", "64:130", "--steps", "130:140")
    assert np.array_equal(replayed[64:140], stepped)
    whole = logits(hybrid.folder, ids_path, out)
    assert not np.array_equal(replayed[64:128], whole[64:128]), "a block in step mode has other bits"
    coded = logits(hybrid.folder, ids_path, out, "--kv", "rk4v4-e8")
    assert 0.001 < np.abs(coded - whole).max() / whole.std() < 0.5


def test_images_replace_placeholders(make_hybrid: MakeHybrid, tmp_path: Path, ids_path: Path) -> None:
    hybrid, out, images = make_hybrid(SHAPE), tmp_path / "out.npy", tmp_path / "images.npz"
    placed = PlacedImage(70, 3, 5)
    rows = np.random.default_rng(1).normal(size=(placed.num_tokens, SHAPE.hidden)).astype(np.float32)
    np.savez(images, offsets=[70], grids=[[1, 6, 10]], rows=rows)
    seen, blind = logits(hybrid.folder, ids_path, out, "--images", images), logits(hybrid.folder, ids_path, out)
    assert np.array_equal(seen[:64], blind[:64]) and not np.allclose(seen[70:], blind[70:], atol=0.01)
    assert np.abs(logits(hybrid.folder, ids_path, out, "--images", images, "--chunk", 64) - seen).max() < 1e-4


def test_the_bundled_model_and_its_artifact_agree(tmp_path: Path, ids_path: Path) -> None:
    convert = [sys.executable, "-m", "engine.convert", TINY_HYBRID, "--out", tmp_path / "m", "--recipe", "exact"]
    done = subprocess.run(convert, env={"PYTHONPATH": str(SERVICES)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    source = logits(TINY_HYBRID, ids_path, tmp_path / "a.npy")
    assert source.shape == (150, lookup("tiny-hybrid").spec.vocab_size)
    assert np.array_equal(logits(tmp_path / "m", ids_path, tmp_path / "b.npy"), source)


@pytest.mark.weights
def test_a_fetched_model_folder_is_a_checkpoint_too(smollm2_folder: Path, tmp_path: Path, ids_path: Path) -> None:
    scores = logits(smollm2_folder, write_ids(tmp_path / "few.json", [1, 2, 3]), tmp_path / "out.npy")
    assert scores.shape == (3, 49152) and np.isfinite(scores).all()


def test_refusals_are_one_clear_line(
    make_hybrid: MakeHybrid, tmp_path: Path, ids_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = make_hybrid(SHAPE).folder, tmp_path / "out.npy"
    assert "has neither manifest.json nor config.json" in refusal(capsys, tmp_path, ids_path, out)
    assert "JSON list of token ids" in refusal(capsys, folder, folder / "config.json", out)
    long = write_ids(tmp_path / "long.json", [1] * (SHAPE.window + 1))
    assert f"has {SHAPE.window + 1} ids" in refusal(capsys, folder, long, out)
    assert "id 512 at index 1" in refusal(capsys, folder, write_ids(tmp_path / "bad.json", [1, 512]), out)
    assert "--chunk is 0" in refusal(capsys, folder, ids_path, out, "--chunk", 0)
    assert "--steps 9:400 does not lie between 0 and 150" in refusal(capsys, folder, ids_path, out, "--steps", "9:400")
    assert "cannot be written" in refusal(capsys, folder, ids_path, tmp_path / "no" / "out.npy")
    images = tmp_path / "images.npz"
    np.savez(images, offsets=[148], grids=[[1, 2, 8]], rows=np.zeros((4, SHAPE.hidden)))
    assert "4 tokens at 148 does not fit" in refusal(capsys, folder, ids_path, out, "--images", images)
    np.savez(images, offsets=[8], grids=[[1, 2, 8]], rows=np.zeros((3, SHAPE.hidden)))
    assert "rows are [3, 64], expected [4, 64]" in refusal(capsys, folder, ids_path, out, "--images", images)
    np.savez(images, offsets=[8], grids=[[2, 2, 8]], rows=np.zeros((4, SHAPE.hidden)))
    assert "expected [1, even, even]" in refusal(capsys, folder, ids_path, out, "--images", images)


def test_a_model_folder_of_no_known_name_is_refused(
    tmp_path: Path, ids_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_home(tmp_path) / "models" / TINY.name
    assert "'tiny-engine' is not supported" in refusal(capsys, folder, ids_path, tmp_path / "out.npy")
