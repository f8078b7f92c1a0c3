"""The answer of `plan memory` as data: the document of --json, from which the table is written too. Owns its shape."""

from msgspec import Struct

from contracts.engine_info import Region
from engine.plan.budget import Budget
from engine.plan.card import Basis, cards, cuda_reserve
from engine.plan.demand import Choice, Planner
from engine.plan.ways import Way, find_smallest, find_ways
from engine.regions import group_regions

_PACKED_NOTE = (
    "the packed executor is planned, not built: this version's engine runs the reference executor, on a card too "
    "(--executor reference)"
)


class ReserveLine(Struct, frozen=True):
    """Bytes of the device outside the arena, and where the number comes from."""

    name: str
    bytes: int
    basis: Basis
    source: str


class WayLine(Struct, frozen=True):
    """One way to fit: the options to add or change, what it saves and what it leaves."""

    options: list[str]
    saved_bytes: int
    left_bytes: int


class DeviceLine(Struct, frozen=True):
    """What the plan is for; total_bytes as source says."""

    name: str
    title: str
    total_bytes: int
    source: str


class ChoiceLine(Struct, frozen=True):
    """What was planned; weights is "recipe NAME", or "on disk"."""

    kv_format: str
    context: int
    drafts: int
    chunk_tokens: int
    embedding: str
    weights: str
    executor: str
    kv_bytes_per_token: int
    kv_bytes_per_token_with_mtp: int


class MemoryDocument(Struct, frozen=True):
    """The JSON document.

    total_bytes is the arena, the sum of regions, as a started engine reports it. left_bytes is usable_bytes less
    total_bytes, negative when it does not fit; deficit_bytes is then the same number without its sign, else 0.
    smallest_bytes: where no way fits, what the smallest choice takes, else None. cards: those of the table that hold
    the plan as it was asked for; empty when it fits. notes: what a reader must know of the numbers.
    """

    model: str
    device: DeviceLine
    choice: ChoiceLine
    fits: bool
    usable_bytes: int
    total_bytes: int
    left_bytes: int
    deficit_bytes: int
    regions: list[Region]
    reserves: list[ReserveLine]
    host_bytes: int
    host_regions: list[Region]
    ways: list[WayLine]
    smallest_bytes: int | None
    cards: list[str]
    notes: list[str]


def make_report(planner: Planner, choice: Choice, budget: Budget) -> MemoryDocument:
    """Lay out the choice and compare it with the budget.

    Raises: SetupError when this version cannot hold the choice.
    """
    demand = planner.lay_out(choice)
    left_bytes = budget.usable_bytes - demand.device.total_bytes
    fits = left_bytes >= 0
    ways = [] if fits else find_ways(planner, choice, budget.usable_bytes)
    return MemoryDocument(
        model=planner.spec.name,
        device=DeviceLine(budget.name, budget.title, budget.device_bytes, budget.source),
        choice=_describe_choice(planner, choice),
        fits=fits,
        usable_bytes=budget.usable_bytes,
        total_bytes=demand.device.total_bytes,
        left_bytes=left_bytes,
        deficit_bytes=max(0, -left_bytes),
        regions=group_regions(planner.spec, demand.device),
        reserves=[ReserveLine(line.name, line.bytes, line.basis, line.source) for line in budget.reserves],
        host_bytes=demand.host.total_bytes,
        host_regions=group_regions(planner.spec, demand.host),
        ways=[WayLine(_options(way), way.saved_bytes, way.left_bytes) for way in ways],
        smallest_bytes=None if fits or ways else find_smallest(planner, choice)[1],
        cards=[] if fits or choice.executor == "reference" else _larger_cards(budget, demand.device.total_bytes),
        notes=[_PACKED_NOTE] if choice.executor == "packed" else [],
    )


def _describe_choice(planner: Planner, choice: Choice) -> ChoiceLine:
    main_bytes, all_bytes = planner.cache_bytes_per_token(choice)
    return ChoiceLine(
        kv_format=choice.kv_format,
        context=choice.context_limit,
        drafts=choice.num_drafts,
        chunk_tokens=choice.chunk_tokens,
        embedding=choice.embedding,
        weights="on disk" if choice.recipe is None else f"recipe {choice.recipe}",
        executor=choice.executor,
        kv_bytes_per_token=main_bytes,
        kv_bytes_per_token_with_mtp=all_bytes,
    )


def _options(way: Way) -> list[str]:
    """The options that turn the wish into the way, the window last."""
    choice = way.choice
    values = {"kv_format": f"--kv {choice.kv_format}", "recipe": f"--recipe {choice.recipe}"}
    values |= {"embedding": f"--embedding {choice.embedding}", "context_limit": f"--context {choice.context_limit}"}
    return [text for field, text in values.items() if field in way.changed]


def _larger_cards(budget: Budget, total_bytes: int) -> list[str]:
    """Cards on which the plan fits beside the same reserves."""
    reserved_bytes = sum(line.bytes for line in budget.reserves) or cuda_reserve().bytes
    return [card.name for card in cards() if card.total_bytes - reserved_bytes >= total_bytes]
