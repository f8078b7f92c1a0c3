"""The arena binds exactly what was planned: every byte once, aligned, and no page before it is written."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import SetupError
from engine.memory.arena import Arena
from engine.memory.layout import DType, LayoutBuilder

CPU = torch.device("cpu")
DTYPES: list[DType] = ["fp32", "fp16", "bf16", "int64", "int32", "int16", "int8", "uint8"]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.lists(st.integers(1, 30), min_size=1, max_size=3), st.sampled_from(DTYPES)), max_size=9))
def test_every_planned_byte_is_bound_exactly_once(wishes: list[tuple[list[int], DType]]) -> None:
    builder = LayoutBuilder()
    handles = [builder.reserve(str(i), tuple(shape), dtype) for i, (shape, dtype) in enumerate(wishes)]
    arena = Arena(builder.plan(), CPU)
    tensors = [arena.tensor(handle) for handle in handles]
    base = tensors[0].data_ptr() if tensors else 0
    owner = torch.zeros(arena.plan.total_bytes, dtype=torch.int32)
    for tensor, region, (shape, _) in zip(tensors, arena.plan.regions, wishes, strict=True):
        assert list(tensor.shape) == shape and tensor.is_contiguous()
        assert tensor.data_ptr() % 256 == 0 and tensor.data_ptr() - base == region.offset
        assert tensor.nbytes == region.tensor_bytes
        owner[region.offset : region.offset + region.bytes] += 1
    assert bool((owner == 1).all())


def test_writes_stay_inside_their_region() -> None:
    builder = LayoutBuilder()
    handles = [builder.reserve(name, (67,), "uint8") for name in "abc"]
    arena = Arena(builder.plan(), CPU)
    for value, handle in enumerate(handles, start=1):
        arena.tensor(handle).fill_(value)
    for value, handle in enumerate(handles, start=1):
        assert arena.tensor(handle.name).tolist() == [value] * 67


def test_same_bytes_on_every_call_and_after_the_arena_is_gone() -> None:
    builder = LayoutBuilder()
    handle = builder.reserve("a", (4,), "fp32")
    arena = Arena(builder.plan(), CPU)
    first = arena.tensor(handle)
    first.fill_(3.0)
    assert arena.tensor("a").data_ptr() == first.data_ptr()
    del arena
    assert first.tolist() == [3.0] * 4


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def test_pages_are_counted_but_not_touched_before_use() -> None:
    builder = LayoutBuilder()
    builder.reserve("large", (1 << 30,), "uint8")
    before = resident_bytes()
    arena = Arena(builder.plan(), CPU)
    tensor = arena.tensor("large")
    assert arena.plan.total_bytes == 1 << 30
    assert resident_bytes() - before < 64 << 20
    assert tensor[123].item() == 0, "fresh pages are zero"
    tensor[: 128 << 20].fill_(1)
    assert resident_bytes() - before >= 128 << 20


def test_absurd_plan_is_a_setup_error() -> None:
    builder = LayoutBuilder()
    builder.reserve("absurd", (1 << 60,), "uint8")
    with pytest.raises(SetupError, match=f"refused {1 << 60} bytes"):
        Arena(builder.plan(), CPU)


def test_empty_plan_has_an_arena() -> None:
    assert Arena(LayoutBuilder().plan(), CPU).plan.total_bytes == 0


def test_unknown_region_is_our_bug() -> None:
    with pytest.raises(KeyError, match="nothing"):
        Arena(LayoutBuilder().plan(), CPU).tensor("nothing")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_device_that_is_too_small_is_a_setup_error() -> None:
    builder = LayoutBuilder()
    builder.reserve("absurd", (1 << 45,), "uint8")
    with pytest.raises(SetupError, match=r" free$"):
        Arena(builder.plan(), torch.device("cuda"))
