"""Smaller choices that fit where the wished one does not: the cheapest few. Owns the search and what cheap means.

Every way returned was laid out whole and fits. Cheapest first: fewest changes, then fewest tokens of the window given
up, then fewest bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

from contracts.errors import SetupError
from engine.ops.kv_layout import smaller_formats
from engine.plan.demand import Choice, Place, Planner
from engine.spec import RecipeName

MAX_WAYS: Final = 3
MIN_CONTEXT: Final = 4096
CONTEXT_STEP: Final = 1024
_RECIPES: Final[tuple[RecipeName, ...]] = ("exact", "balanced", "compact")


@dataclass(frozen=True, slots=True)
class Way:
    """A choice that fits, the fields in which it differs from the wish, and what it saves and leaves."""

    choice: Choice
    changed: frozenset[str]
    saved_bytes: int
    left_bytes: int


def find_ways(planner: Planner, wish: Choice, usable_bytes: int) -> list[Way]:
    """The up to three cheapest ways to fit into usable_bytes; none when even the smallest choice is too large."""
    wished_bytes = planner.total_bytes(wish)
    found: list[Way] = []
    for smaller in _smaller(planner, wish):
        fitting = _fit_window(planner, smaller, usable_bytes)
        if fitting is not None:
            total_bytes = planner.lay_out(fitting).device.total_bytes
            assert total_bytes <= usable_bytes, "the sum of the parts was less than the whole"
            left_bytes = usable_bytes - total_bytes
            found.append(Way(fitting, _changed(wish, fitting), wished_bytes - total_bytes, left_bytes))
    useful = [way for way in found if not any(_asks_less(other, way) for other in found)]
    useful.sort(key=lambda way: (len(way.changed), -way.choice.context_limit, way.saved_bytes))
    return useful[:MAX_WAYS]


def find_smallest(planner: Planner, wish: Choice) -> tuple[Choice, int]:
    """The choice that takes the least, and its bytes."""
    context = min(MIN_CONTEXT, wish.context_limit)
    choices = [replace(choice, context_limit=context) for choice in _smaller(planner, wish)]
    sizes = [planner.total_bytes(choice) for choice in choices]
    return choices[sizes.index(min(sizes))], min(sizes)


def _smaller(planner: Planner, wish: Choice) -> Iterator[Choice]:
    """The wish, then every combination of what can be made smaller besides the window."""
    places: list[Place] = [wish.embedding]
    if wish.embedding == "device" and wish.executor == "packed" and not planner.spec.tied_embedding:
        places.append("host")
    recipes: list[RecipeName | None] = [wish.recipe]
    if wish.recipe is not None:
        recipes += _RECIPES[_RECIPES.index(wish.recipe) + 1 :]
    elif planner.can_convert:
        recipes.append("compact")
    for kv_format in (wish.kv_format, *smaller_formats(wish.kv_format, planner.spec.attention.head_dim)):
        for place in places:
            for recipe in recipes:
                choice = replace(wish, kv_format=kv_format, embedding=place, recipe=recipe)
                if choice == wish or _is_smaller(planner, choice, wish):
                    yield choice


def _is_smaller(planner: Planner, choice: Choice, wish: Choice) -> bool:
    try:
        return planner.total_bytes(choice) < planner.total_bytes(wish)
    except SetupError:  # the recipe cannot hold the model's matrices
        return False


def _fit_window(planner: Planner, choice: Choice, usable_bytes: int) -> Choice | None:
    """The choice if it fits, else with the largest window of whole steps that does, else None."""
    if planner.total_bytes(choice) <= usable_bytes:
        return choice
    low, high = MIN_CONTEXT // CONTEXT_STEP, (choice.context_limit - 1) // CONTEXT_STEP
    fitting: Choice | None = None
    while low <= high:
        middle = (low + high) // 2
        shorter = replace(choice, context_limit=middle * CONTEXT_STEP)
        if planner.total_bytes(shorter) <= usable_bytes:
            fitting, low = shorter, middle + 1
        else:
            high = middle - 1
    return fitting


def _changed(wish: Choice, choice: Choice) -> frozenset[str]:
    return frozenset(field.name for field in fields(Choice) if getattr(wish, field.name) != getattr(choice, field.name))


def _asks_less(other: Way, way: Way) -> bool:
    """Whether other changes part of what way changes and keeps as long a window."""
    return other.changed < way.changed and other.choice.context_limit >= way.choice.context_limit
