"""The memory plan: spans tile the arena, the budget is refused with the deficit and the cheapest ways to fit."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import SetupError
from engine.memory.layout import DType, LayoutBuilder, MemoryPlan, WayToFit

SERVICES = Path(__file__).resolve().parents[3] / "services"
DTYPES: list[DType] = ["fp32", "fp16", "bf16", "int64", "int32", "int16", "int8", "uint8"]
WISHES = st.lists(
    st.tuples(
        st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
        st.sampled_from(DTYPES),
        st.sampled_from([256, 512, 4096]),
    ),
    max_size=12,
)
Wish = tuple[tuple[int, ...], DType, int]


def plan_of(wishes: list[Wish]) -> MemoryPlan:
    builder = LayoutBuilder()
    for index, (shape, dtype, alignment) in enumerate(wishes):
        builder.reserve(f"region{index}", shape, dtype, alignment=alignment)
    return builder.plan()


@given(WISHES)
def test_spans_tile_the_arena(wishes: list[Wish]) -> None:
    plan = plan_of(wishes)
    end = 0
    for region, (shape, _, alignment) in zip(plan.regions, wishes, strict=True):
        assert region.offset == end, "a gap or an overlap"
        assert region.offset % alignment == 0
        assert region.shape == shape
        assert region.bytes >= region.tensor_bytes > 0
        end = region.offset + region.bytes
    assert plan.total_bytes == end == sum(region.bytes for region in plan.regions)
    assert plan.alignment_bytes == max((alignment for _, _, alignment in wishes), default=256)


def test_bytes_follow_from_shape_and_dtype() -> None:
    builder = LayoutBuilder()
    builder.reserve("a", (3, 5), "bf16")
    builder.reserve("b", (129,), "int64", alignment=1024)
    plan = builder.plan()
    assert [(r.name, r.offset, r.bytes, r.tensor_bytes) for r in plan.regions] == [
        ("a", 0, 1024, 30),
        ("b", 1024, 1280, 1032),
    ]


def test_budget_is_exact_to_the_byte() -> None:
    plan = plan_of([((256,), "int32", 256)])
    assert plan.fits(1024) and not plan.fits(1023)
    plan.require_fit(1024)
    with pytest.raises(SetupError, match=r"needs 1024 bytes, the budget is 1023 bytes: 1 bytes short$"):
        plan.require_fit(1023)


def test_refusal_names_the_three_cheapest_ways() -> None:
    plan = plan_of([((1000,), "uint8", 256)])
    ways = [WayToFit(f"W{saved}", saved) for saved in (900, 100, 700, 600, 24, 800)]
    with pytest.raises(SetupError) as caught:
        plan.require_fit(524, ways)
    assert caught.value.message.endswith(
        "500 bytes short. To fit: W600 (saves 600 bytes); W700 (saves 700 bytes); W800 (saves 800 bytes)"
    )


def test_refusal_says_when_no_single_way_is_enough() -> None:
    plan = plan_of([((1000,), "uint8", 256)])
    with pytest.raises(SetupError, match=r"No single change is enough; the largest is B \(saves 9 bytes\)$"):
        plan.require_fit(24, [WayToFit("A", 8), WayToFit("B", 9), WayToFit("C", 0)])


def test_builder_refuses_mistakes() -> None:
    builder = LayoutBuilder()
    builder.reserve("a", (1,), "fp32")
    for shape, name in (((1,), "a"), ((), "b"), ((0,), "c")):
        with pytest.raises(AssertionError, match="region"):
            builder.reserve(name, shape, "fp32")
    with pytest.raises(AssertionError, match="128"):
        builder.reserve("d", (1,), "fp32", alignment=128)


def test_planning_needs_no_torch() -> None:
    modules = "engine.memory.layout, engine.weights.reserve, engine.ops.linear_layout"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SERVICES)})
