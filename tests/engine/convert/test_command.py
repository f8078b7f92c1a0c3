"""`python -m engine.convert` as a process: exit codes, one line of reason, killed and resumed, little memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from contracts.errors import SetupError
from engine.convert.conversion import partial_folder
from engine.convert.writer import JOURNAL_NAME
from engine.model_home import read_folder
from support.conversion import convert_quietly, directory_of
from support.hybrid_checkpoint import TINY_HYBRID, Shape, random_values, shapes, spell, stored_values, write_checkpoint

SERVICES = Path(__file__).resolve().parents[3] / "services"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SERVICES), "OMP_NUM_THREADS": "1"}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine.convert", *map(str, arguments), "--threads", "1"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)


def refusal(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()[-1]


def test_tiny_hybrid_becomes_a_model_folder(tmp_path: Path) -> None:
    out = tmp_path / "tiny-hybrid"
    done = run(TINY_HYBRID, "--out", out, "--recipe", "exact", "--verify")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"tiny-hybrid is in {out} (")
    assert "converting: 3.7 of 3.7 MB" in done.stderr and f"verifying {out}" in done.stderr
    manifest = read_folder(out).manifest
    assert manifest.stop_token_ids == [2018, 2016] and manifest.eos_token == "<|im_end|>" and manifest.bos_token == ""
    assert manifest.license == "Apache-2.0" and manifest.context_limit == 262144
    assert (out / "tokenizer.json").read_bytes() == (TINY_HYBRID / "tokenizer.json").read_bytes()
    assert (out / "chat_template.jinja").read_bytes() == (TINY_HYBRID / "chat_template.jinja").read_bytes()
    assert directory_of(read_folder(out)).spec.dead_token_rows == 6
    assert os.listdir(tmp_path) == ["tiny-hybrid"]

    again = run(TINY_HYBRID, "--out", out, "--recipe", "exact")
    assert again.returncode == 0 and "converting" not in again.stderr
    assert "holds tiny-hybrid with recipe exact; remove it first" in refusal(TINY_HYBRID, "--out", out)
    content = bytearray((out / "weights.bin").read_bytes())
    content[1000] ^= 1
    (out / "weights.bin").write_bytes(content)
    flipped = run(TINY_HYBRID, "--out", out, "--recipe", "exact", "--verify")
    assert flipped.returncode == 1 and "weights.bin is damaged: it has SHA-256" in flipped.stderr


def test_other_checkpoints_keep_their_own_description(checkpoint: Path, tmp_path: Path) -> None:
    done = run(checkpoint, "--out", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    manifest = read_folder(tmp_path / "mine").manifest
    assert (manifest.name, manifest.license, manifest.context_limit) == ("mine", "unknown", 4096)
    assert manifest.default_sampling.temperature == 0.7 and manifest.stop_token_ids == [2018, 2016]


def test_name_of_the_registry_must_be_that_model(checkpoint: Path, tmp_path: Path) -> None:
    message = refusal(checkpoint, "--out", tmp_path / "qwen3.8-27b")
    assert f"{checkpoint} is not qwen3.8-27b: vocab_size: 2048, expected 248320; hidden_size: 64" in message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing", "is neither a folder with a checkpoint nor a .gguf file"),
        ("empty", "has no config.json: expected a checkpoint's folder or a .gguf file"),
    ],
)
def test_source_that_is_none(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "empty").mkdir()
    assert text in refusal(tmp_path / name, "--out", tmp_path / "out")


def test_poisoned_tensor_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    shape = Shape()
    values = random_values(shape)
    values["layers.3.self_attn.v_proj.weight"][7, 5] = np.nan
    source = write_checkpoint(tmp_path / "s", shape, stored_values(values))
    message = refusal(source, "--out", tmp_path / "o" / "m")
    name = spell("layers.3.self_attn.v_proj.weight")
    assert message.endswith(f"tensor {name} has weights that are not finite")
    assert os.listdir(tmp_path / "o") == []


def test_tensor_beyond_the_range_of_scales_is_named(tmp_path: Path) -> None:
    shape = Shape()
    values = random_values(shape)
    values["layers.1.mlp.up_proj.weight"][:, :64] = 1e9
    source = write_checkpoint(tmp_path / "s", shape, stored_values(values))
    assert "up_proj.weight has weights too large for fp16 scales" in refusal(source, "--out", tmp_path / "m")


@pytest.mark.parametrize("content", [b"{}", b"not json", b""])
def test_tokenizer_that_is_none_is_one_line(checkpoint: Path, tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "s"
    shutil.copytree(checkpoint, source)
    (source / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json cannot be read" in refusal(source, "--out", tmp_path / "m")


def test_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    shape = Shape(vocab=2000)
    source = write_checkpoint(tmp_path / "s", shape, stored_values(random_values(shape)))
    assert "the tokenizer has 2042 tokens, the vocabulary 2000 rows" in refusal(source, "--out", tmp_path / "m")


def test_missing_template_is_named(checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "s"
    shutil.copytree(checkpoint, source)
    (source / "chat_template.jinja").unlink()
    assert "has no chat template" in refusal(source, "--out", tmp_path / "m")
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    (source / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert run(source, "--out", tmp_path / "m").returncode == 0
    assert (tmp_path / "m" / "chat_template.jinja").read_text() == "yes"


def start(source: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "engine.convert", str(source), "--out", str(out), "--threads", "1"]
    return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def journal_lines(out: Path) -> int:
    path = partial_folder(out) / JOURNAL_NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stop_midway(source: Path, out: Path, number: signal.Signals, *, after: int = 8) -> tuple[int, str]:
    """Send a signal once some tensors are finished."""
    child = start(source, out)
    deadline = time.monotonic() + 60
    while journal_lines(out) < after:
        assert child.poll() is None and time.monotonic() < deadline, "ended before it could be stopped"
        time.sleep(0.002)
    child.send_signal(number)
    _, stderr = child.communicate(timeout=60)
    return child.returncode, stderr


@pytest.fixture(scope="module")
def slow_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that takes about a second."""
    shape = Shape(hidden=512, inner=1536, layers=8, vocab=2048)
    return write_checkpoint(tmp_path_factory.mktemp("slow") / "s", shape, stored_values(random_values(shape)))


def test_killed_conversion_goes_on_and_gives_the_same_bytes(slow_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    code, _ = stop_midway(slow_source, out, signal.SIGKILL)
    assert code == -signal.SIGKILL and not out.exists()
    kept = journal_lines(out)
    written = (partial_folder(out) / "weights.bin").stat().st_ino
    done = run(slow_source, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "checking what is there" in done.stderr and kept >= 8
    assert (out / "weights.bin").stat().st_ino == written, "the file went on, it was not begun anew"
    whole = convert_quietly(slow_source, tmp_path / "other" / "m")
    assert read_folder(out).manifest == whole.manifest
    assert sorted(os.listdir(tmp_path)) == ["m", "other"], "the working folder is gone"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_conversion_says_what_is_kept(slow_source: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "m"
    code, stderr = stop_midway(slow_source, out, number)
    assert code == 1 and "Traceback" not in stderr
    kept = journal_lines(out) - 1
    where = partial_folder(out)
    expected = (
        f"converting to {out} was interrupted; {kept} finished parts are kept in {where}, the same command goes on"
    )
    assert stderr.splitlines()[-1] == expected


def test_what_was_damaged_meanwhile_is_made_again(slow_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    stop_midway(slow_source, out, signal.SIGKILL)
    path = partial_folder(out) / "weights.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = run(slow_source, "--out", out, "--verify")
    assert done.returncode == 0, done.stderr
    assert read_folder(out).manifest == convert_quietly(slow_source, tmp_path / "other" / "m").manifest


def test_another_recipe_or_source_begins_anew(slow_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    stop_midway(slow_source, out, signal.SIGKILL)
    done = run(slow_source, "--out", out, "--recipe", "compact")
    assert done.returncode == 0 and "checking what is there" not in done.stderr
    assert read_folder(out).manifest == convert_quietly(slow_source, tmp_path / "other" / "m", "compact").manifest


def test_two_conversions_at_once_are_refused(slow_source: Path, tmp_path: Path) -> None:
    child = start(slow_source, tmp_path / "m")
    try:
        while journal_lines(tmp_path / "m") < 1:
            assert child.poll() is None
            time.sleep(0.002)
        child.send_signal(signal.SIGSTOP)
        assert "another conversion is at work in" in refusal(slow_source, "--out", tmp_path / "m")
    finally:
        child.send_signal(signal.SIGCONT)
        child.communicate(timeout=60)
    assert child.returncode == 0


MEMORY_PROBE = """
import resource, sys
from engine.convert.__main__ import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
code = main(sys.argv[1:])
print(code, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_stays_small_however_large_the_checkpoint(tmp_path: Path) -> None:
    """A checkpoint of 420 MB, its largest matrix 126 MB, adds less than 100 MB to what an idle process takes."""
    shape = Shape(hidden=512, inner=40960, layers=4, mtp=False)
    source = write_checkpoint(tmp_path / "s", shape, {})
    with_holes(source / "model.safetensors", shape)
    command = [sys.executable, "-c", MEMORY_PROBE, str(source), "--out", str(tmp_path / "m"), "--threads", "2"]
    done = subprocess.run(
        [*command, "--recipe", "exact"], env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=120
    )
    code, before_kb, peak_kb = map(int, done.stdout.split())
    assert code == 0 and (source / "model.safetensors").stat().st_size > 420e6
    assert (peak_kb - before_kb) * 1024 < 100e6, f"{before_kb} kB before, {peak_kb} kB at the peak"


def with_holes(path: Path, shape: Shape) -> None:
    """Write a file whose tensors are zeros that take no room on disk."""
    header: dict[str, object] = {}
    offset = 0
    for name, axes in shapes(shape).items():
        dtype, size = ("F32", 4) if name.endswith(("A_log", "dt_bias")) else ("BF16", 2)
        end = offset + int(np.prod(axes)) * size
        header[spell(name)] = {"dtype": dtype, "shape": list(axes), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)


def test_space_is_checked_before_and_said(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(checkpoint, "--out", tmp_path / "m")
    assert f"m, recipe balanced: 0.00 GB to {tmp_path / 'm'}, " in done.stderr and "GB free" in done.stderr
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1234))
    needed = (tmp_path / "m" / "weights.bin").stat().st_size + 64_000_000
    with pytest.raises(SetupError, match=f"needs {needed} bytes there, 1234 are free"):
        convert_quietly(checkpoint, tmp_path / "other" / "m")
    assert os.listdir(tmp_path / "other") == []
