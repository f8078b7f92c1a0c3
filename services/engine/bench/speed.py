"""`bench decode` and `bench prefill`: tokens a second of the engine beside its peers, in one run on one file.

Owns rounds, medians and the report. Rounds interleave the contenders and turn their order (ours, peer, peer, ours),
because machines are shared and speeds drift; each round has prompts of its own, so that no prefix is reused.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import torch

from contracts.errors import ServiceError, SetupError
from contracts.settings import resolve_home
from engine.bench.contender import Absent, Contender, Work
from engine.bench.ours import OurEngine
from engine.bench.peers import TransformersPeer, open_llama_cpp, open_transformers
from engine.machine import usable_cpus
from engine.model_home import open_folder
from engine.registry import lookup
from engine.settings import read_environment
from engine.spec import ModelSpec

OURS, TRANSFORMERS, LLAMA_CPP = "soloist", "transformers", "llama_cpp"
_PEERS = (TRANSFORMERS, LLAMA_CPP)

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    what: str
    model: str
    llama_bench: Path | None
    num_rounds: int
    prefill_tokens: int
    decode_depth: int
    decode_tokens: int
    threads: int
    as_json: bool


@dataclass(slots=True)
class Samples:
    """Tokens a second of one contender, a number per round."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Measure and report; exit code 2 when something to measure with is missing."""
    options = _read_options(arguments)
    try:
        report = measure(options, resolve_home(read_environment()), lookup(options.model).spec)
    except ServiceError as error:
        sys.stderr.write(f"bench: {error.message}\n")
        return 2 if isinstance(error, SetupError) else 1
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n" if options.as_json else render_table(report))
    return 0


def measure(options: Options, home: Path, spec: ModelSpec) -> dict[str, object]:
    """Run every round on spec, the model that the options name, and make the report.

    Raises: SetupError when model or peer cannot be had; ServiceError when the engine fails.
    """
    folder = open_folder(home, spec.name)
    llama_cpp = open_llama_cpp(options.llama_bench, folder.weights_path, options.threads)
    ours = OurEngine(home, spec, options.threads)
    transformers = open_transformers(folder.weights_path)
    peers: dict[str, Contender | Absent] = {TRANSFORMERS: transformers, LLAMA_CPP: llama_cpp}
    contenders: dict[str, Contender] = {OURS: ours}
    contenders |= {name: peer for name, peer in peers.items() if not isinstance(peer, Absent)}
    samples = {name: Samples() for name in contenders}
    for number in range(options.num_rounds + 1):
        round_samples = samples if number else {name: Samples() for name in contenders}  # the first one warms up
        order = list(contenders) if number % 2 else list(reversed(contenders))
        work = _make_work(options, folder.manifest.vocab_size, number)
        for name in order:
            _run_one(contenders[name], round_samples[name], work, options.what)
    ours.close()
    absent = {name: peer.reason for name, peer in peers.items() if isinstance(peer, Absent)}
    version = transformers.version if isinstance(transformers, TransformersPeer) else None
    return {
        **_report(options, samples, absent),
        "executor": ours.executor,
        "kv_format": ours.kv_format,
        "environment": _environment(options, version),
    }


def _run_one(contender: Contender, samples: Samples, work: Work, what: str) -> None:
    samples.prefill.append(contender.prefill_tok_s(work))
    if what == "decode":
        samples.decode.append(contender.decode_tok_s(work))


def _make_work(options: Options, vocab_size: int, number: int) -> Work:
    rng = np.random.default_rng(number)
    return Work(
        prefill_ids=rng.integers(0, vocab_size, options.prefill_tokens),
        decode_ids=rng.integers(0, vocab_size, options.decode_depth),
        num_new_tokens=options.decode_tokens,
    )


def _report(options: Options, samples: Mapping[str, Samples], absent: Mapping[str, str]) -> dict[str, object]:
    medians = {name: _medians(one) for name, one in samples.items()}
    nothing = _medians(Samples())
    return {
        **medians[OURS],
        "peers": {name: medians.get(name, {**nothing, "reason": absent.get(name)}) for name in _PEERS},
        "ratio": {name: _ratio(samples[OURS], samples.get(name, Samples())) for name in _PEERS},
        "ranges": {
            name: {"prefill_tok_s": _range(one.prefill), "decode_tok_s": _range(one.decode)}
            for name, one in samples.items()
        },
        "rounds": options.num_rounds,
        "prefill_tokens": options.prefill_tokens,
        "decode_depth": options.decode_depth,
        "decode_tokens": options.decode_tokens,
        "model": options.model,
        "command": shlex.join(["python", "-m", "engine.bench", *sys.argv[1:]]),
    }


def _medians(samples: Samples) -> dict[str, float | None]:
    return {"prefill_tok_s": _median(samples.prefill), "decode_tok_s": _median(samples.decode)}


def _ratio(ours: Samples, theirs: Samples) -> dict[str, float | None]:
    """Medians of the ratio within a round: the machine's other load then weighs on both sides."""
    return {
        kind: _median([a / b for a, b in zip(mine, peer, strict=False)])
        for kind, mine, peer in (("prefill", ours.prefill, theirs.prefill), ("decode", ours.decode, theirs.decode))
    }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def _range(values: list[float]) -> list[float] | None:
    return [round(min(values), 3), round(max(values), 3)] if values else None


def _environment(options: Options, transformers_version: str | None) -> dict[str, object]:
    environ = read_environment()
    libraries = ("OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers_version,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": options.threads,
        "load_1m": round(os.getloadavg()[0], 2),
        "libraries": {name: environ[name] for name in libraries if name in environ},
    }


def _read_options(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench", description="Tokens a second beside peers on the same file.")
    parser.add_argument("what", choices=("decode", "prefill"), help="decode measures both, prefill only itself")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's llama-bench program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill-tokens", type=int, default=512)
    parser.add_argument("--decode-depth", type=int, default=64, help="tokens before the first generated one")
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=usable_cpus().value)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args(arguments)
    if min(given.rounds, given.prefill_tokens, given.decode_depth, given.threads) < 1 or given.decode_tokens < 2:
        parser.error("counts are at least 1, --decode-tokens at least 2")
    return Options(
        given.what, given.model, given.llama_bench, given.rounds, given.prefill_tokens, given.decode_depth,
        given.decode_tokens, given.threads, given.json,
    )  # fmt: skip


def render_table(report: Mapping[str, object]) -> str:
    """The report for people."""
    peers, ranges, ratio = (cast(Mapping[str, Row], report[name]) for name in ("peers", "ranges", "ratio"))
    lines = [f"{'tokens a second':16} {'prefill':>9} {'range':>17} {'decode':>9} {'range':>17}  ours / theirs"]
    lines.append(_table_line(OURS, report, ranges[OURS]))
    for name, row in peers.items():
        if name in ranges:
            against = f"  prefill {_cell(ratio[name]['prefill'])}, decode {_cell(ratio[name]['decode'])}"
            lines.append(_table_line(name, row, ranges[name]) + against)
        else:
            lines.append(f"{name:16} not measured: {row['reason']}")
    lines.append(f"medians of {report['rounds']} rounds; {report['environment']}")
    return "\n".join([*lines, str(report["command"]), ""])


def _table_line(name: str, row: Row, ranges: Row) -> str:
    cells = [f"{_cell(row[kind])} {_span(ranges[kind])}" for kind in ("prefill_tok_s", "decode_tok_s")]
    return f"{name:16} {' '.join(cells)}"


def _cell(value: object) -> str:
    return f"{value:9.2f}" if isinstance(value, float) else f"{'-':>9}"


def _span(values: object) -> str:
    return f"{values[0]:8.2f}-{values[1]:<8.2f}" if isinstance(values, list) else f"{'-':>17}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
