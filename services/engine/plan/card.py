"""Graphics cards as data: memory, bandwidth, dense compute, power, each with where it was read. Owns the table.

Dense figures only; GeForce cards halve their rate when they accumulate in fp32, so both modes are kept. What a process
takes of a card outside the arena (driver context, graphs, library workspaces) is a Reserve beside it.
"""

from dataclasses import dataclass
from typing import Literal

from contracts.errors import SetupError

Basis = Literal["published", "measured", "given"]
"""Where a number comes from: somebody's publication, this project's measurement, or the command line."""

GIB = 1 << 30
MIB = 1 << 20
_DATE = "2026-11"


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes of the device that no region of the memory plan may take."""

    name: str
    bytes: int
    basis: Basis
    source: str


@dataclass(frozen=True, slots=True)
class Card:
    """One card; gigabytes are the maker's, total_bytes is what its driver reports.

    Units:   bandwidth_bytes_s bytes a second; FLOP/s and operations a second dense, None where the card has no such
             unit; watts at the default limit.
    bf16_flop_s accumulates in fp32, bf16_fast_flop_s in fp16 where that is faster; fp8 likewise.
    """

    name: str
    title: str
    gigabytes: int
    total_bytes: int
    bandwidth_bytes_s: float
    bf16_flop_s: float
    bf16_fast_flop_s: float
    fp8_flop_s: float | None
    fp8_fast_flop_s: float | None
    int8_op_s: float
    watts: int
    source: str
    total_source: str
    date: str = _DATE


def cards() -> tuple[Card, ...]:
    """Every card of the table, the smallest first."""
    return _CARDS


def lookup_card(name: str) -> Card:
    """The card of a name.

    Raises: SetupError naming the choices.
    """
    for card in _CARDS:
        if card.name == name:
            return card
    raise SetupError(f"card {name!r} is not in the table; known: {', '.join(card.name for card in _CARDS)}")


def cuda_reserve() -> Reserve:
    """What the engine's process takes of a card outside its arena.

    Only the sum was published, for an RTX 4090 without a screen; it stands for the other cards until one is measured.
    """
    source = (
        "public 24 GB planner of the same model family on an RTX 4090, headless: 23.99 GiB total, 23.12 GiB for the "
        f"plan; only this sum is published ({_DATE})"
    )
    return Reserve("CUDA context, graphs, library workspaces", round(0.87 * GIB), "published", source)


def _card(
    names: tuple[str, str],
    memory: tuple[int, int],
    gb_s: float,
    tflops: tuple[float, float, float | None, float | None, float],
    watts: int,
    source: str,
) -> Card:
    """names: key, title. memory: gigabytes, MiB by the driver. tflops: bf16, fast, fp8, fast, int8."""
    bf16, bf16_fast, fp8, fp8_fast, int8 = tflops
    return Card(
        name=names[0],
        title=names[1],
        gigabytes=memory[0],
        total_bytes=memory[1] * MIB,
        bandwidth_bytes_s=gb_s * 1e9,
        bf16_flop_s=bf16 * 1e12,
        bf16_fast_flop_s=bf16_fast * 1e12,
        fp8_flop_s=None if fp8 is None else fp8 * 1e12,
        fp8_fast_flop_s=None if fp8_fast is None else fp8_fast * 1e12,
        int8_op_s=int8 * 1e12,
        watts=watts,
        source=source,
        total_source=f"{memory[1]} MiB, as the driver's tool prints it in public logs",
    )


_CARDS = (
    _card(
        ("l4", "NVIDIA L4"), (24, 23_034), 300, (121, 121, 242, 242, 242), 72,
        "vendor datasheet, sparse figures halved, unchecked; other tables list half",
    ),
    _card(
        ("rtx4090", "NVIDIA GeForce RTX 4090"), (24, 24_564), 1008, (165.2, 330.3, 330.3, 660.6, 660.6), 450,
        "public specification pages",
    ),
    _card(
        ("rtx3090", "NVIDIA GeForce RTX 3090"), (24, 24_576), 936, (71, 142, None, None, 284), 350,
        "vendor whitepaper, unchecked",
    ),
    _card(
        ("rtx5090", "NVIDIA GeForce RTX 5090"), (32, 32_607), 1792, (209.5, 419, 419, 838, 838), 575,
        "public specification pages, sparse figures halved",
    ),
    _card(
        ("l40s", "NVIDIA L40S"), (48, 46_068), 864, (362, 362, 733, 733, 733), 350,
        "public table; sources disagree",
    ),
    _card(
        ("rtx4090-48gb", "NVIDIA GeForce RTX 4090, modified to 48 GB"), (48, 49_140), 1008,
        (165.2, 330.3, 330.3, 660.6, 660.6), 450,
        "as rtx4090; the memory is no product of the vendor",
    ),
    _card(
        ("h100", "NVIDIA H100 SXM"), (80, 81_559), 3350, (989, 989, 1979, 1979, 1979), 700,
        "public tables",
    ),
    _card(
        ("a100-80gb", "NVIDIA A100 80 GB SXM"), (80, 81_920), 2039, (312, 312, None, None, 624), 400,
        "public table",
    ),
    _card(
        ("h200", "NVIDIA H200 SXM"), (141, 143_771), 4800, (989, 989, 1979, 1979, 1979), 700,
        "public table",
    ),
    _card(
        ("b200", "NVIDIA B200"), (180, 183_359), 7700, (2250, 2250, 4500, 4500, 4500), 1000,
        "public tables; they list 180 to 192 GB and 7,700 to 8,000 GB/s, the lower is kept",
    ),
)  # fmt: skip
