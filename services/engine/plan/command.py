"""`plan memory`: options to a choice and a budget, every value checked, then the report. Owns defaults and refusals."""

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Final, TypeVar, get_args

from contracts.errors import SetupError
from engine.model_home import folder_path, open_folder
from engine.ops.kv_layout import kv_layout
from engine.plan.budget import Budget, card_budget, device_budget, machine_budget
from engine.plan.card import lookup_card
from engine.plan.demand import Choice, ExecutorName, Place, Planner
from engine.plan.report import MemoryDocument, make_report
from engine.registry import DEFAULT_MODEL, PackageSource, RegisteredModel, lookup
from engine.settings import EngineSettings
from engine.spec import KvFormat, ModelSpec, RecipeName
from engine.weights.checkpoint import Checkpoint, open_weights
from engine.weights.recipe import RECIPE_NAMES

MAX_DRAFTS: Final = 5
DEFAULT_DRAFTS: Final = 3
MIN_CONTEXT: Final = 64
MAX_CHUNK_TOKENS: Final = 65_536
GRID_TOKENS: Final = 64
_KV_FORMATS: Final[tuple[KvFormat, ...]] = get_args(KvFormat)
_EXECUTORS: Final[tuple[ExecutorName, ...]] = get_args(ExecutorName)
_PLACES: Final[tuple[Place, ...]] = get_args(Place)
_Name = TypeVar("_Name", bound=str)


def plan_memory(options: argparse.Namespace, home: Path) -> MemoryDocument:
    """Answer a parsed command line; home is where models are on disk.

    Raises: SetupError naming the value and the choices.
    """
    model = lookup(DEFAULT_MODEL if options.model is None else options.model)
    asked = None if options.recipe is None else _one_of("--recipe", options.recipe, RECIPE_NAMES)
    checkpoint, recipe = _find_weights(model, asked, home)
    budget = _budget(options)
    choice = _choice(options, model.spec, recipe, on_card=budget.on_card)
    # A packaged file is served as it is; every other source can be converted again.
    planner = Planner(model.spec, checkpoint, can_convert=not isinstance(model.source, PackageSource))
    return make_report(planner, choice, budget)


def _find_weights(
    model: RegisteredModel, asked: RecipeName | None, home: Path
) -> tuple[Checkpoint | None, RecipeName | None]:
    """The weights on disk if they are there and no recipe was asked for, else a recipe."""
    name = model.spec.name
    if asked is not None:
        return None, asked
    if folder_path(home, name).exists():
        return open_weights(open_folder(home, name)), None
    if isinstance(model.source, PackageSource):
        raise SetupError(
            f"{name} is not in {home / 'models'} and its file is served as it is, so only the file tells its bytes; "
            f"run: ./soloist fetch {name}, or plan with --recipe {', '.join(RECIPE_NAMES)}"
        )
    return None, model.recipe


def _budget(options: argparse.Namespace) -> Budget:
    _at_least("--vision-bytes", options.vision_bytes, 0)
    _at_least("--reserve-bytes", options.reserve_bytes, 0)
    _at_least("--device-bytes", options.device_bytes, 1)
    reserve_bytes, vision_bytes = options.reserve_bytes, options.vision_bytes
    if options.gpu is not None:
        return card_budget(lookup_card(options.gpu), reserve_bytes, vision_bytes)
    if options.device_bytes is not None:
        return device_budget(options.device_bytes, reserve_bytes, vision_bytes)
    return machine_budget(reserve_bytes, vision_bytes)


def _choice(options: argparse.Namespace, spec: ModelSpec, recipe: RecipeName | None, *, on_card: bool) -> Choice:
    executor: ExecutorName = "packed" if on_card else "reference"
    if options.executor is not None:
        executor = _one_of("--executor", options.executor, _EXECUTORS)
    place: Place = "device" if options.embedding is None else _one_of("--embedding", options.embedding, _PLACES)
    if place == "host" and executor == "reference":
        raise SetupError("--embedding host: the reference executor keeps the embedding on its device; choose device")
    return Choice(
        kv_format=_kv_format(options.kv, spec),
        context_limit=_context(options.context, spec),
        num_drafts=_drafts(options.drafts, executor),
        chunk_tokens=_chunk_tokens(options.chunk_tokens),
        embedding=place,
        recipe=recipe,
        executor=executor,
    )


def _kv_format(asked: str | None, spec: ModelSpec) -> KvFormat:
    if asked is None:
        return spec.default_kv_format
    kv_format = _one_of("--kv", asked, _KV_FORMATS)
    try:
        kv_layout(kv_format, spec.attention.num_kv_heads, spec.attention.head_dim)
    except ValueError as error:
        raise SetupError(f"--kv {asked}: {error}") from error
    return kv_format


def _context(asked: int | None, spec: ModelSpec) -> int:
    if asked is None:
        return spec.context_limit
    if not MIN_CONTEXT <= asked <= spec.context_limit:
        raise SetupError(f"--context is {asked}, {spec.name} takes {MIN_CONTEXT} to {spec.context_limit}")
    return asked


def _drafts(asked: int | None, executor: ExecutorName) -> int:
    if asked is None:
        return DEFAULT_DRAFTS if executor == "packed" else 0  # columns one by one save no time
    if not 0 <= asked <= MAX_DRAFTS:
        raise SetupError(f"--drafts is {asked}, expected 0 to {MAX_DRAFTS}")
    return asked


def _chunk_tokens(asked: int | None) -> int:
    if asked is None:
        return EngineSettings().chunk_tokens
    if not GRID_TOKENS <= asked <= MAX_CHUNK_TOKENS or asked % GRID_TOKENS:
        raise SetupError(
            f"--chunk-tokens is {asked}, expected a multiple of {GRID_TOKENS} from {GRID_TOKENS} to {MAX_CHUNK_TOKENS}"
        )
    return asked


def _at_least(option: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise SetupError(f"{option} is {value}, expected at least {minimum}")


def _one_of(option: str, value: str, choices: Collection[_Name]) -> _Name:
    for choice in choices:
        if choice == value:
            return choice
    raise SetupError(f"{option} is {value!r}, expected one of {', '.join(choices)}")
