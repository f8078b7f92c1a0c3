"""`python -m engine.debug logits CHECKPOINT IDS.json OUT.npy`: what the engine computes, for oracles. Owns the command.

Works on files alone: no model home, no server, no settings. The window is as long as the ids.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from contracts.errors import NumericalError, SetupError
from engine.debug_input import Subject, open_subject, read_ids, read_images
from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.model.decoder import Decoder, require_runnable
from engine.model.reserve import reserve_decoder
from engine.model.vision_rows import VisionRows
from engine.spec import KvFormat
from engine.weights.binding import load_weights
from engine.weights.reserve import reserve_weights

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
_DEFAULT_CHUNK: Final = 512
_DESCRIPTION = """\
Write fp32 logits [T, vocab] of every position. CHECKPOINT is a folder in the public layout (config.json and
safetensors), a .gguf file, or a model folder made by fetch or convert.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns 0 done, 1 the model gave what is no number, 2 refused."""
    options = _parser().parse_args(arguments)
    try:
        _write_logits(options)
    except SetupError as error:
        sys.stderr.write(f"debug: {error.message}\n")
        return EXIT_REFUSED
    except NumericalError as error:
        sys.stderr.write(f"debug: {error.message}\n")
        return EXIT_FAILED
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.debug")
    commands = parser.add_subparsers(dest="command", required=True)
    logits = commands.add_parser("logits", description=_DESCRIPTION, help="logits of every position")
    logits.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    logits.add_argument("ids", type=Path, metavar="IDS.json", help="a JSON list of token ids")
    logits.add_argument("out", type=Path, metavar="OUT.npy")
    logits.add_argument(
        "--images", type=Path, metavar="FILE.npz", help="offsets [n], grids [n, 3] in patches, rows [tokens, hidden]"
    )
    logits.add_argument("--chunk", type=int, default=_DEFAULT_CHUNK, metavar="N", help="ids computed at once (512)")
    logits.add_argument("--kv", choices=get_args(KvFormat), help="how keys and values are kept (fp32)", default="fp32")
    logits.add_argument(
        "--steps",
        type=_span,
        action="append",
        default=[],
        metavar="START:END",
        help="compute these positions one by one, as generated ones; may be repeated, in ascending order",
    )
    return parser


def _span(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isdigit() and end.isdigit() and int(start) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is no START:END")
    return int(start), int(end)


def _write_logits(options: argparse.Namespace) -> None:
    subject = open_subject(options.checkpoint)
    ids = read_ids(options.ids, subject.spec)
    vision = None
    if options.images is not None:
        vision = read_images(options.images, len(ids), subject.spec.hidden_size)
    if options.chunk < 1:
        raise SetupError(f"--chunk is {options.chunk}, expected at least 1")
    decoder = _make_decoder(subject, options.kv, len(ids), min(options.chunk, len(ids)))
    scores = np.empty((len(ids), subject.spec.vocab_size), dtype=np.float32)
    for start, end, one_by_one in _cuts(len(ids), options.chunk, options.steps):
        part = None if vision is None else vision.slice(start, end)
        scores[start:end] = _score(decoder, ids[start:end], part, one_by_one=one_by_one)
    try:
        with options.out.open("wb") as file:
            np.save(file, scores)
    except OSError as error:
        raise SetupError(f"{options.out} cannot be written: {error}") from error


def _make_decoder(subject: Subject, kv_format: KvFormat, num_tokens: int, chunk_tokens: int) -> Decoder:
    require_runnable(subject.spec)
    builder = LayoutBuilder()
    reserve_weights(subject.spec, subject.checkpoint, builder)
    try:
        handles = reserve_decoder(builder, subject.spec, kv_format, num_tokens, chunk_tokens)
    except ValueError as error:
        raise SetupError(f"{subject.spec.name}: {error}") from error
    arena = Arena(builder.plan(), torch.device("cpu"))
    weights = load_weights(subject.spec, subject.checkpoint, arena, lambda _done, _total: None)
    return Decoder(subject.spec, weights, arena, handles, subject.centres)


def _cuts(num_tokens: int, chunk_tokens: int, steps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Spans in order, and whether they are computed one by one.

    Raises: SetupError when the step spans overlap or leave the ids.
    """
    first = 0
    for start, end in [*steps, (num_tokens, num_tokens)]:
        if not first <= start <= end <= num_tokens:
            raise SetupError(f"--steps {start}:{end} does not lie between {first} and {num_tokens}")
        for begin in range(first, start, chunk_tokens):
            yield begin, min(begin + chunk_tokens, start), False
        if start < end:
            yield start, end, True
        first = end


def _score(
    decoder: Decoder, ids: NDArray[np.int64], vision: VisionRows | None, *, one_by_one: bool
) -> NDArray[np.float32]:
    if not one_by_one:
        return decoder.score(ids, vision)
    if vision is not None and len(vision.columns):
        raise SetupError("--steps covers an image: generated positions are text")
    return np.array([decoder.step(int(token_id)).copy() for token_id in ids])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
