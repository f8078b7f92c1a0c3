"""`bench codec`: what each KV format costs in accuracy, on random data and inside a real model. Owns rows and measures.

Every format of the engine and, as reference rows, the 4-bit codings others ship. Keys and values are quantised after
RoPE and read back before attention, everything else stays fp32; the text is source code of the standard library.
Does NOT measure speed.
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from contracts.errors import ServiceError
from contracts.settings import resolve_home
from engine.bench.codec_model import (
    CALIBRATION_MODULES,
    EVALUATION_MODULES,
    WINDOW_TOKENS,
    ProbedModel,
    attend,
    load_probed_model,
)
from engine.bench.codec_weights import WeightStudy
from engine.model_home import folder_path
from engine.ops.kv_codec import decode, encode, rotate
from engine.ops.kv_codec.variants import round_e8_without_coset, round_int4, round_midrise
from engine.ops.kv_layout import KvFormat, kv_layout
from engine.settings import read_environment

_GAUSSIAN_GROUPS = 40_000
_KL_ROWS = 128  # rows of vocabulary-wide distributions held at once
_STUDY_WINDOWS = 3
_FOUR_BITS = 0.5 + 2 / 64  # with one fp16 scale per 64

Round = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Coding:
    """One row: how keys and values ([T, Hkv, D], code space) are rounded, and what code space is."""

    bytes_per_element: float
    round_keys: Round
    round_values: Round
    rotated: bool = True
    centred: bool = False

    def apply(self, x: Tensor, centre: Tensor, rounding: Round) -> Tensor:
        """What attention sees of x [T, Hkv, D]; centre [Hkv, D]."""
        y = x - centre if self.centred else x
        y = rotate(rounding(rotate(y))) if self.rotated else rounding(y)
        return y + centre if self.centred else y


def _format_row(kv_format: KvFormat, *, rotated: bool = False, centred: bool = False) -> Coding:
    layout = kv_layout(kv_format, 1, 64)

    def round_trip(y: Tensor) -> Tensor:
        return decode(encode(kv_format, y))

    return Coding(layout.side_bytes_per_token / 64, round_trip, round_trip, rotated, centred)


CODINGS = {
    "bf16": _format_row("bf16"),
    "int8": _format_row("int8"),
    "rk4v4-e8": _format_row("rk4v4-e8", rotated=True, centred=True),
    "rk4v4-e8-uncentred": _format_row("rk4v4-e8", rotated=True),
    "int4-rotated": Coding(_FOUR_BITS, round_int4, round_int4),
    "int4-rotated-centred": Coding(_FOUR_BITS, round_int4, round_int4, centred=True),
    "midrise-rotated": Coding(_FOUR_BITS, round_midrise, round_midrise),
    "e8-coset-dropped": Coding(_FOUR_BITS, round_e8_without_coset, partial(round_int4, divisor=7.0)),
    "int4-plain": Coding(_FOUR_BITS, partial(round_int4, divisor=7.0), partial(round_int4, divisor=7.0), rotated=False),
}


@dataclass(slots=True)
class ErrorSum:
    """Squared error and squared norm by layer."""

    error: dict[int, float] = field(default_factory=dict)
    norm: dict[int, float] = field(default_factory=dict)

    def add(self, layer: int, got: Tensor, want: Tensor) -> None:
        """Count one tensor of a layer."""
        self.error[layer] = self.error.get(layer, 0.0) + float((got - want).square().sum())
        self.norm[layer] = self.norm.get(layer, 0.0) + float(want.square().sum())

    def mean(self) -> float:
        """Mean over layers of error / norm."""
        ratios = self._ratios()
        return sum(ratios) / len(ratios)

    def worst(self) -> float:
        """The worst layer's error / norm."""
        return max(self._ratios())

    def _ratios(self) -> list[float]:
        return [self.error[layer] / self.norm[layer] for layer in self.error]


@dataclass(slots=True)
class Tally:
    """One row's sums over all windows."""

    keys: ErrorSum = field(default_factory=ErrorSum)
    values: ErrorSum = field(default_factory=ErrorSum)
    attention: ErrorSum = field(default_factory=ErrorSum)
    nll: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    num_flips: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What is reported of one format.

    nmse_* are the mean over layers of squared error / squared norm, attention_error the root of that mean for attention
    outputs; *_worst are the worst layer's. KL is per token, in nats, from unquantised KV.
    """

    bytes_per_element: float
    nmse_gaussian: float
    nmse_gaussian_64: float
    nmse_keys: float
    nmse_keys_worst: float
    nmse_values: float
    nmse_values_worst: float
    attention_error: float
    attention_error_worst: float
    perplexity: float
    kl_mean: float
    kl_max: float
    flip_rate: float


class CodecBench:
    """Runs the windows through the model once per row and adds up."""

    def __init__(self, probed: ProbedModel, names: list[str], study: WeightStudy | None) -> None:
        self._probed = probed
        self._names = names
        self._study = study
        self._tallies = {name: Tally() for name in names}
        self._nll: list[float] = []
        self._num_windows = 0
        self._centres: dict[int, tuple[Tensor, Tensor]] = {}

    def calibrate(self, windows: list[Tensor]) -> None:
        """Mean key (after RoPE) and mean value of every layer and KV head."""
        for window in windows:
            self._probed.logits(window, self._add_to_centres)
        self._centres = {layer: (k / len(windows), v / len(windows)) for layer, (k, v) in self._centres.items()}

    def run(self, window: Tensor) -> None:
        """Unquantised first, which also gives the tensors whose errors are reported, then every row."""
        reference = self._probed.logits(window, self._compare).log_softmax(-1)
        self._nll += _negative_log_likelihood(reference, window)
        for name in self._names:
            logits = self._probed.logits(window, partial(self._quantize, CODINGS[name]))
            self._tallies[name].nll += _negative_log_likelihood(logits, window)
            self._tallies[name].kl += _divergence(reference, logits)
            self._tallies[name].num_flips += int((reference.argmax(-1) != logits.argmax(-1)).sum())
        self._num_windows += 1

    def report(self) -> dict[str, object]:
        """Rows by name, fp32 being the unquantised run itself."""
        exact = Row(4.0, *(0.0,) * 8, perplexity=_perplexity(self._nll), kl_mean=0.0, kl_max=0.0, flip_rate=0.0)
        rows = {"fp32": exact} | {name: self._row(name) for name in self._names}
        return {name: asdict(row) for name, row in rows.items()}

    def _add_to_centres(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        del q, scale
        sums = self._centres.get(layer)
        means = (k.mean(0), v.mean(0))
        self._centres[layer] = means if sums is None else (sums[0] + means[0], sums[1] + means[1])
        return k, v

    def _compare(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        out = attend(q, k, v, scale)
        for name in self._names:
            got_k, got_v = self._quantize(CODINGS[name], layer, q, k, v, scale)
            tally = self._tallies[name]
            tally.keys.add(layer, got_k, k)
            tally.values.add(layer, got_v, v)
            tally.attention.add(layer, attend(q, got_k, got_v, scale), out)
        if self._study is not None and self._num_windows < _STUDY_WINDOWS:
            self._study.add(layer, q, k, self._centres[layer][0])
        return k, v

    def _quantize(
        self, coding: Coding, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        del q, scale
        centre_k, centre_v = self._centres[layer]
        return coding.apply(k, centre_k, coding.round_keys), coding.apply(v, centre_v, coding.round_values)

    def _row(self, name: str) -> Row:
        coding, tally = CODINGS[name], self._tallies[name]
        return Row(
            bytes_per_element=coding.bytes_per_element,
            nmse_gaussian=gaussian_error(coding.round_keys, 256),
            nmse_gaussian_64=gaussian_error(coding.round_keys, 64),
            nmse_keys=tally.keys.mean(),
            nmse_keys_worst=tally.keys.worst(),
            nmse_values=tally.values.mean(),
            nmse_values_worst=tally.values.worst(),
            attention_error=math.sqrt(tally.attention.mean()),
            attention_error_worst=math.sqrt(tally.attention.worst()),
            perplexity=_perplexity(tally.nll),
            kl_mean=sum(tally.kl) / len(tally.kl),
            kl_max=max(tally.kl),
            flip_rate=tally.num_flips / len(tally.kl),
        )


def gaussian_error(rounding: Round, head_dim: int) -> float:
    """Normalised mean squared error of a rounding on standard normal head-tokens that are in code space already."""
    num_tokens = _GAUSSIAN_GROUPS * 64 // head_dim
    y = torch.randn(num_tokens, 1, head_dim, generator=torch.Generator().manual_seed(0))
    return float((rounding(y) - y).square().sum() / y.square().sum())


def _negative_log_likelihood(logits: Tensor, window: Tensor) -> list[float]:
    losses = torch.nn.functional.cross_entropy(logits[:-1], window[1:], reduction="none")
    return [float(loss) for loss in losses]


def _divergence(reference: Tensor, logits: Tensor) -> list[float]:
    """KL(reference || other) of every position, in nats; reference holds log-probabilities."""
    result: list[float] = []
    for want, row in zip(torch.split(reference, _KL_ROWS), torch.split(logits, _KL_ROWS), strict=True):
        result += [float(kl) for kl in (want.exp() * (want - row.log_softmax(-1))).sum(-1)]
    return result


def _perplexity(nll: list[float]) -> float:
    return math.exp(sum(nll) / len(nll))


def measure(folder: Path, names: list[str], num_windows: int, *, weights: bool) -> dict[str, object]:
    """The whole report.

    Raises: SetupError when the folder holds no model.
    """
    probed = load_probed_model(folder)
    study = WeightStudy() if weights else None
    bench = CodecBench(probed, names, study)
    with torch.inference_mode():
        bench.calibrate(probed.windows(CALIBRATION_MODULES))
        for number, window in enumerate(probed.windows(EVALUATION_MODULES[:num_windows]), start=1):
            bench.run(window)
            sys.stderr.write(f"window {number}/{num_windows}\n")
        report: dict[str, object] = {
            "model_folder": folder.name,
            "text": f"Python {platform.python_version()} standard library",
            "num_tokens": num_windows * WINDOW_TOKENS,
            "num_calibration_tokens": len(CALIBRATION_MODULES) * WINDOW_TOKENS,
            "formats": bench.report(),
        }
    if study is not None:
        report["weights"] = study.report()
    return report


def main(argv: list[str]) -> int:
    """Command line; 0 done, 1 when the model cannot be had."""
    parser = argparse.ArgumentParser(prog="bench codec", description=__doc__.partition("\n")[0])
    parser.add_argument("--model-folder", type=Path, help="holds a .gguf file (default: the fetched smollm2-135m)")
    parser.add_argument("--formats", nargs="+", choices=sorted(CODINGS), default=list(CODINGS), help="rows to measure")
    parser.add_argument("--windows", type=int, choices=range(1, len(EVALUATION_MODULES) + 1), metavar="N",
                        default=len(EVALUATION_MODULES), help=f"windows of {WINDOW_TOKENS} tokens, 1 to 8")  # fmt: skip
    parser.add_argument("--weights", action="store_true", help="also compare lattice weights S^2, S, 1 on keys")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    folder = options.model_folder or folder_path(resolve_home(read_environment()), "smollm2-135m")
    try:
        report = measure(folder, options.formats, options.windows, weights=options.weights)
    except ServiceError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    sys.stdout.write((json.dumps(report, indent=2) if options.json else _table(report)) + "\n")
    return 0


def _table(report: dict[str, object]) -> str:
    rows = report["formats"]
    assert isinstance(rows, dict)
    columns = ("bytes_per_element", "nmse_gaussian", "nmse_keys", "nmse_values", "attention_error", "perplexity",
               "kl_mean", "kl_max", "flip_rate")  # fmt: skip
    lines = [f"{'format':<22}" + "".join(f"{column:>18}" for column in columns)]
    lines += [f"{name:<22}" + "".join(f"{row[column]:>18.5f}" for column in columns) for name, row in rows.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
