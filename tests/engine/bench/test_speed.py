"""The speed benchmark on the tiny model: keys, ratios, peers that are there and peers that are not."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import SetupError
from engine.bench.speed import Options, measure, render_table
from support.tiny_engine import TINY, make_home

SERVICES = Path(__file__).resolve().parents[3] / "services"
# Stands in for llama-bench: 100 tokens a second of prefill, 10 of decode, and a record of how it was called.
FAKE_LLAMA = """#!{python}
import json, sys
open({log!r}, "a").write(json.dumps(sys.argv[1:]) + "\\n")
prompt, new = (int(sys.argv[sys.argv.index(flag) + 1]) for flag in ("-p", "-n"))
print(json.dumps([{{"n_prompt": prompt, "n_gen": new, "avg_ts": 100.0 if prompt else 10.0}}]))
"""


def options(**changes: Any) -> Options:
    fields: dict[str, Any] = {
        "what": "decode", "model": TINY.name, "llama_bench": None, "num_rounds": 3, "prefill_tokens": 200,
        "decode_depth": 10, "decode_tokens": 12, "threads": 1, "as_json": True,
    }  # fmt: skip
    return Options(**{**fields, **changes})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


def fake_llama(folder: Path) -> tuple[Path, Path]:
    program, log = folder / "llama-bench", folder / "calls"
    program.write_text(FAKE_LLAMA.format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, log


def test_decode_reports_both_speeds_against_both_peers(home: Path, tmp_path: Path) -> None:
    program, log = fake_llama(tmp_path)
    report: Any = measure(options(llama_bench=program), home, TINY)
    assert report["decode_tok_s"] > 0 and report["prefill_tok_s"] > 0
    assert report["peers"]["llama_cpp"] == {"prefill_tok_s": 100.0, "decode_tok_s": 10.0}
    assert report["peers"]["transformers"]["decode_tok_s"] > 0
    assert report["ratio"]["llama_cpp"]["prefill"] == pytest.approx(report["prefill_tok_s"] / 100, rel=1e-3)
    assert report["ratio"]["transformers"]["decode"] > 0
    assert report["executor"] == "reference-cpu" and report["environment"]["threads"] == 1
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(calls) == 2 * (3 + 1), "prefill and decode of three rounds and the warm-up"
    assert calls[0][-4:] == ["-p", "200", "-n", "0"] and calls[1][-6:] == ["-p", "0", "-n", "12", "-d", "10"]
    assert json.loads(msgspec.json.encode(report)) == report, "the report is plain JSON"
    table = render_table(report)
    assert "soloist" in table and "100.00" in table and "not measured" not in table


def test_an_absent_peer_is_null_with_its_reason(home: Path) -> None:
    report: Any = measure(options(what="prefill", num_rounds=1), home, TINY)
    absent = report["peers"]["llama_cpp"]
    assert absent == {"prefill_tok_s": None, "decode_tok_s": None, "reason": "no --llama-bench PATH given"}
    assert report["ratio"]["llama_cpp"] == {"prefill": None, "decode": None}
    assert report["decode_tok_s"] is None and report["prefill_tok_s"] > 0
    assert "llama_cpp        not measured: no --llama-bench PATH given" in render_table(report)


def test_a_peer_that_was_named_must_work(home: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no such file"):
        measure(options(llama_bench=tmp_path / "nowhere"), home, TINY)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such model' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(SetupError, match="ended with 3: no such model"):
        measure(options(llama_bench=broken), home, TINY)


@pytest.mark.parametrize("arguments", [[], ["walk"]])
def test_unknown_benchmarks_are_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.bench", *arguments], env={"PYTHONPATH": str(SERVICES)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "decode,prefill" in done.stderr
