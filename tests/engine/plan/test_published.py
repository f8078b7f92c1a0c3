"""The planner's formulas with other engines' inputs against what those engines published. Never our own plan.

The published planner serves Qwen3.8-27B on an RTX 4090 without a screen, one sequence, with the MTP head: 16.672 GiB of
weights are resident, and 0.56 GiB are workspace, states, graphs and tables together (their split is not published).
Vision is 0.28 GiB of weights and 0.33 GiB of scratch for 8,192 merged tokens.
"""

import dataclasses
from collections.abc import Mapping

import pytest

from engine.memory.layout import LayoutBuilder
from engine.ops.kv_layout import kv_layout
from engine.plan.budget import card_budget
from engine.plan.card import cards, lookup_card
from engine.plan.demand import Choice, Planner
from engine.registry import lookup
from engine.spec import KvFormat
from engine.state.reserve import reserve_cache, reserve_delta_state, reserve_replay
from engine.weights.forms import MatrixForm, PackedForm
from engine.weights.reserve_order import reserve_regions
from engine.weights.schema import decoder_need
from support.planning import GIB

TOLERANCE_GIB = 0.05
MIB = 1 << 20
SPEC = lookup("qwen3.8-27b").spec
WEIGHTS_GIB, FIXED_GIB, VISION_8K_GIB = 16.672, 0.56, 0.28 + 0.33
LANE_GIB = 0.38


def usable_bytes() -> int:
    return card_budget(lookup_card("rtx4090"), reserve_bytes=None, vision_bytes=0).usable_bytes


def cache_bytes(kv_format: KvFormat, num_positions: int) -> int:
    """16 attention layers and the MTP layer, as the engine reserves them."""
    builder = LayoutBuilder()
    layout = kv_layout(kv_format, SPEC.attention.num_kv_heads, SPEC.attention.head_dim)
    reserve_cache(builder, "kv", layout, SPEC.num_attention_layers, num_positions)
    reserve_cache(builder, "mtp_kv", layout, SPEC.mtp_layers, num_positions)
    return builder.plan().total_bytes


def slack_gib(kv_bytes: int, extra_gib: float = 0.0) -> float:
    return (usable_bytes() - kv_bytes) / GIB - WEIGHTS_GIB - FIXED_GIB - extra_gib


def test_a_headless_24_gb_card_leaves_what_was_published() -> None:
    assert usable_bytes() / GIB == pytest.approx(23.12, abs=0.01)


@pytest.mark.parametrize(
    ("kv_format", "num_positions", "extra_gib", "published_gib"),
    [
        ("rk4v4-e8", 262_144, 0.0, 1.37),
        ("rk4v4-e8", 262_144, VISION_8K_GIB, 0.762),
        ("int8", 172_032, 0.0, 0.133),
    ],
)
def test_published_slack(kv_format: KvFormat, num_positions: int, extra_gib: float, published_gib: float) -> None:
    assert slack_gib(cache_bytes(kv_format, num_positions), extra_gib) == pytest.approx(
        published_gib, abs=TOLERANCE_GIB
    )


def test_published_slack_of_a_format_given_by_its_bytes() -> None:
    """2-bit keys, 4-bit values: 13,312 bytes a token in 16 layers, and a seventeenth layer for the MTP head."""
    assert slack_gib(13_312 * 17 // 16 * 262_144) == pytest.approx(2.43, abs=TOLERANCE_GIB)


def test_a_published_refusal_is_one_here() -> None:
    assert slack_gib(cache_bytes("int8", 196_608)) == pytest.approx(-0.69, abs=TOLERANCE_GIB)


@pytest.mark.parametrize(("kv_format", "payload_bytes"), [("int8", 8_789_164_032), ("rk4v4-e8", 4_527_751_168)])
def test_published_payloads_at_260096_tokens(kv_format: KvFormat, payload_bytes: int) -> None:
    builder = LayoutBuilder()
    layout = kv_layout(kv_format, SPEC.attention.num_kv_heads, SPEC.attention.head_dim)
    reserve_cache(builder, "kv", layout, SPEC.num_attention_layers, 260_096)
    stored = [region for region in builder.plan().regions if not region.name.endswith("_centres")]
    assert sum(region.bytes for region in stored) == payload_bytes


@pytest.mark.parametrize(
    ("kv_format", "main", "with_mtp"),
    [("bf16", 65_536, 69_632), ("int8", 33_792, 35_904), ("rk4v4-e8", 17_408, 18_496)],
)
def test_bytes_per_token(kv_format: KvFormat, main: int, with_mtp: int) -> None:
    planner = Planner(SPEC, None, can_convert=True)
    choice = Choice(kv_format, 262_144, 3, 512, "device", "balanced", "packed")
    assert planner.cache_bytes_per_token(choice) == (main, with_mtp)
    shorter = dataclasses.replace(choice, context_limit=131_072)
    assert planner.total_bytes(choice) - planner.total_bytes(shorter) == 131_072 * with_mtp


def test_state_image_and_replay_record() -> None:
    """One image is 144 MiB of state and 2.8125 MiB of convolution columns; a replayed column takes about 2.5 MiB."""
    state, replay = LayoutBuilder(), LayoutBuilder()
    reserve_delta_state(state, "state", SPEC, "bf16")
    reserve_replay(replay, "replay", SPEC, 1, "bf16")
    assert state.plan().total_bytes == 146.8125 * MIB
    assert replay.plan().total_bytes / MIB == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize(
    ("bits", "text_gib", "mtp_gib"),
    [(8, 25.07, 0.40), (4, 12.56, 0.20)],
)
def test_weights_by_bits_a_weight(bits: int, text_gib: float, mtp_gib: float) -> None:
    """Published totals are codes alone; scales of one fp16 per group of 64 add a quarter of a bit."""
    need = decoder_need(SPEC)
    form = PackedForm(8 if bits == 8 else 4, 64)
    forms: Mapping[str, MatrixForm] = {matrix.region: form for matrix in need.matrices()}
    builder = LayoutBuilder()
    reserve_regions(SPEC, need, forms, builder)
    codes = [region for region in builder.plan().regions if not region.name.endswith(".scales")]
    mtp_bytes = sum(region.bytes for region in codes if region.name.startswith("weights.mtp."))
    assert mtp_bytes / GIB == pytest.approx(mtp_gib, abs=TOLERANCE_GIB)
    assert sum(region.bytes for region in codes) / GIB - mtp_bytes / GIB == pytest.approx(text_gib, abs=TOLERANCE_GIB)


def test_every_card_has_plausible_numbers_and_a_source() -> None:
    ridges = {
        "rtx3090": 76, "rtx4090": 164, "rtx4090-48gb": 164, "rtx5090": 117, "l4": 403, "l40s": 419, "a100-80gb": 153,
        "h100": 295, "h200": 206,
    }  # fmt: skip
    names = [card.name for card in cards()]
    assert len(set(names)) == len(names) and set(ridges) | {"b200"} == set(names)
    for card in cards():
        assert card.source and card.total_source and card.date
        assert 0.93 <= card.total_bytes / (card.gigabytes * GIB) <= 1.0, card.name
        assert card.bf16_flop_s <= card.bf16_fast_flop_s <= card.int8_op_s
        if card.name in ridges:
            assert round(card.bf16_flop_s / card.bandwidth_bytes_s) == ridges[card.name], card.name
