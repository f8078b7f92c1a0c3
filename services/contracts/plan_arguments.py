"""The command line of `plan`, shared by the launcher, which explains it before anything is installed, and the engine.

Owns options and help text. Standard library only; what a value may be is checked by the engine, which knows.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

DEFAULT_KIND: Final = "memory"

_DESCRIPTION: Final = """\
Say, to the byte, what a model takes of a card's memory and whether it fits, before a card is bought or a byte is taken.
Needs no GPU and no weights. The regions are reserved by the functions that the engine's start calls.
`plan` alone means `plan memory`.
"""

_EPILOG: Final = """\
what is counted
  device       what the card's driver reports, less a reserve that lies outside the arena: CUDA context, graphs and
               library workspaces (published or given; the mark says which), and --vision-bytes for a vision process
  weights      by kind, as the recipe packs them; the exact files where the model is on this machine
  kv           keys and values of every attention layer over the whole window, and of the MTP head when drafts are on
  state        recurrent state of the delta layers, its staging copy for the store, and the replay record of drafts
  workspace    activations of one prefill chunk, logits of one round; for --executor reference its fp32 copies too
  host         the embedding with --embedding host: counted apart, it is not on the card

cards           l4, rtx4090, rtx3090, rtx5090, l40s, rtx4090-48gb, h100, a100-80gb, h200, b200 (24 to 180 GB; a screen
                on the card takes 0.3 to 1 GiB more: raise --reserve-bytes)
KV formats      fp32 (for comparisons), bf16, int8 (8.25 bits a number), rk4v4-e8 (4.25 bits)
recipes         balanced (4 to 6 bits by kind of matrix), compact (4 bits nearly everywhere), exact (16 bits); small
                models get more bits under the same name
executors       packed (weights stay packed on the card, its kernels read them so; this version plans it and does not
                have it yet), reference (any torch device, fp32 copies of all matrices: what this version runs)

examples
  ./soloist plan --model qwen3.8-27b --gpu rtx4090
  ./soloist plan --model qwen3.8-27b --gpu rtx4090 --kv int8 --context 131072 --vision-bytes 1395864371
  ./soloist plan --model tiny-hybrid --device-bytes 4294967296 --reserve-bytes 0 --json
  ./soloist plan --model smollm2-135m          this machine's memory, as `./soloist up` would use it

--json prints one document: fits, total_bytes (the arena: the sum of regions), left_bytes (negative when it does not
fit), deficit_bytes, regions[] {name, bytes}, reserves[] {name, bytes, basis, source}, ways[] to make it fit, cheapest
first, each of which was planned and fits. Cheapest means: fewest changes, then fewest tokens of the window given up,
then fewest bytes.
Exit codes: 0 fits, 1 failed, 2 does not fit, or a value that cannot be (one line on stderr names it and the choices).
"""


class _Parser(argparse.ArgumentParser):
    """Refuses in one line; the usage of so many options says less than --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse_plan(prog: str, arguments: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """Which plan is wanted and its options; without a kind it is the memory plan.

    Raises: SystemExit after --help (0) and for what cannot be parsed (2, one line on stderr).
    """
    named = bool(arguments) and arguments[0] in _PARSERS
    kind = arguments[0] if named else DEFAULT_KIND
    return kind, _PARSERS[kind](prog).parse_args(arguments[1:] if named else arguments)


def memory_parser(prog: str) -> argparse.ArgumentParser:
    """The options of `plan memory`."""
    parser = _Parser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", metavar="M", help="a name that `soloist models` lists (smollm2-135m)")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", metavar="CARD", help="plan for a card of the table below")
    device.add_argument(
        "--device-bytes", type=int, metavar="N", help="plan for a device of N bytes, as its driver reports them"
    )
    add("--context", type=int, metavar="N", help="window in tokens, prompt and reply together (the model's)")
    add("--kv", metavar="F", help="KV format (the model's default)")
    add("--drafts", type=int, metavar="K", help="tokens drafted a round, 0 to 5 (3; 0 for --executor reference)")
    add("--embedding", metavar="WHERE", help="device, or host for an embedding in the machine's RAM (device)")
    add("--recipe", metavar="R", help="plan with the weights of a recipe (the model on disk, else its own recipe)")
    add("--chunk-tokens", type=int, metavar="N", help="most prompt tokens computed at once, a multiple of 64 (512)")
    add("--vision-bytes", type=int, default=0, metavar="N", help="room for a vision process, its context included (0)")
    add(
        "--reserve-bytes",
        type=int,
        metavar="N",
        help="what the engine's process takes outside the arena (0.87 GiB on a card)",
    )
    add("--executor", metavar="E", help="packed or reference (packed on a card, reference on this machine)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser


_PARSERS: Final[dict[str, Callable[[str], argparse.ArgumentParser]]] = {DEFAULT_KIND: memory_parser}
