"""Sizes of the registered models against the published counts, and what the recipes leave of a 24 GB card."""

import pytest

from contracts.errors import SetupError
from engine.memory.layout import LayoutBuilder
from engine.registry import HubSource, lookup, supported_names
from engine.spec import ModelSpec
from engine.weights.need import DecoderNeed
from engine.weights.recipe import recipe_forms
from engine.weights.reserve import recipe_bytes, reserve_recipe
from engine.weights.schema import decoder_need

GIB = 2**30
# Published parameters in millions, no vision tower: embedding, delta layers, attention layers, MLP, head, MTP, all.
PUBLISHED = {
    "qwen3.5-0.8b": (254.3, 189.8, 44.0, 264.2, 0.0, 20.5, 772.8),
    "qwen3.5-2b": (508.6, 379.1, 88.1, 906.0, 0.0, 60.8, 1942.7),
    "qwen3.5-4b": (635.7, 1011.4, 293.6, 2264.9, 0.0, 120.6, 4326.4),
    "qwen3.5-9b": (1017.1, 1617.7, 469.8, 4831.8, 1017.1, 243.3, 9197.1),
    "qwen3.8-27b": (1271.4, 5562.1, 1677.7, 17112.8, 1271.4, 424.7, 27320.7),
}
USABLE_BYTES = int(23.12 * GIB)  # a headless 24 GB card without the context and graphs of one process
KV_BYTES = 4_848_615_424  # rk4v4-e8: 262,144 tokens of 17,408 bytes, and a sixteenth more for the MTP layer
FIXED_BYTES = int(0.75 * GIB)  # workspace, two states, tables; engines of this kind publish 0.56


def count(need: DecoderNeed, prefixes: tuple[str, ...]) -> float:
    elements = {matrix.region: matrix.num_rows * matrix.num_cols for matrix in need.matrices()}
    elements |= {vector.region: vector.num_elements for vector in need.vectors()}
    return sum(number for region, number in elements.items() if region.startswith(prefixes)) / 1e6


def layers_of(spec: ModelSpec, kind: str, suffixes: tuple[str, ...]) -> tuple[str, ...]:
    found = [index for index, layer in enumerate(spec.schedule) if layer == kind]
    return tuple(f"weights.layers.{index}.{suffix}" for index in found for suffix in suffixes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    spec = lookup(name).spec
    need = decoder_need(spec)
    delta = layers_of(spec, "delta", ("inputs", "gates", "conv", "decay_log", "dt_bias", "norm", "output"))
    attention = layers_of(spec, "attention", ("qkv", "output", "q_norm", "k_norm"))
    mlp = tuple(f"weights.layers.{index}.{part}" for index in range(spec.num_layers) for part in ("gate_up", "down"))
    found = [
        count(need, prefixes)
        for prefixes in (
            ("weights.embedding",),
            delta,
            attention,
            mlp,
            ("weights.head",),
            ("weights.mtp",),
            ("weights.",),
        )
    ]
    for mine, published in zip(found, PUBLISHED[name], strict=True):
        assert mine == pytest.approx(published, abs=0.06), (found, PUBLISHED[name])


def test_three_generations_of_the_27b_are_one_architecture() -> None:
    specs = [lookup(name).spec for name in ("qwen3.5-27b", "qwen3.6-27b", "qwen3.8-27b")]
    assert len({repr(spec).replace(spec.name, "") for spec in specs}) == 1
    assert all(isinstance(lookup(name).source, HubSource) for name in supported_names() if name.startswith("qwen"))


@pytest.mark.parametrize(
    ("recipe", "embedding_on_host", "least_left_gib"),
    [("balanced", False, 1.8), ("balanced", True, 2.7), ("compact", False, 4.0), ("compact", True, 4.6)],
)
def test_27b_at_its_full_window_leaves_room_for_vision(
    recipe: str, embedding_on_host: bool, least_left_gib: float
) -> None:
    """The bar is 1.3 GiB; with MTP, whose layer keeps keys and values too."""
    builder, host = LayoutBuilder(), LayoutBuilder()
    spec = lookup("qwen3.8-27b").spec
    reserve_recipe(spec, recipe, builder, host if embedding_on_host else None)  # type: ignore[arg-type]
    left = USABLE_BYTES - builder.plan().total_bytes - KV_BYTES - FIXED_BYTES
    assert left >= least_left_gib * GIB, f"{left / GIB:.3f} GiB left"
    assert left >= 1.3 * GIB


def test_decode_reads_no_more_than_the_published_artifact() -> None:
    """15.74e9 bytes a token: weights without embedding and MTP head. Ours has better bits where they matter."""
    builder = LayoutBuilder()
    reserve_recipe(lookup("qwen3.8-27b").spec, "balanced", builder)
    regions = builder.plan().regions
    read = sum(r.bytes for r in regions if not r.name.startswith(("weights.embedding", "weights.mtp")))
    assert read < 15.85e9


def test_bytes_follow_from_bits() -> None:
    """bits / 8 a weight and 2 bytes a group of 64."""
    spec = lookup("qwen3.8-27b").spec
    need = decoder_need(spec)
    forms = recipe_forms(spec, need, "balanced")
    expected = 0.0
    for matrix in need.matrices():
        bits = getattr(forms[matrix.region], "bits", None)
        elements = matrix.num_rows * matrix.num_cols
        expected += elements * (2 if bits is None else bits / 8 + 2 / 64)
    expected += 4 * sum(vector.num_elements for vector in need.vectors())
    found = recipe_bytes(spec, "balanced")
    assert expected <= found <= expected + 256 * 2000, "nothing but padding besides"


@pytest.mark.parametrize("name", [name for name in supported_names() if lookup(name).spec.family == "qwen3_5"])
def test_sensitive_matrices_are_never_quantised(name: str) -> None:
    spec = lookup(name).spec
    need = decoder_need(spec)
    for recipe in ("balanced", "compact"):
        forms = recipe_forms(spec, need, recipe)  # type: ignore[arg-type]
        for matrix in need.matrices():
            assert hasattr(forms[matrix.region], "bits") == (matrix.kind != "delta_gates")


def test_columns_that_fill_no_word_are_refused() -> None:
    spec = lookup("tiny-hybrid").spec
    narrow = type(spec)(**{f: getattr(spec, f) for f in spec.__slots__} | {"intermediate_size": 386})
    with pytest.raises(SetupError, match=r"down_proj.weight has 386 columns: 8-bit codes need a multiple of 4"):
        recipe_forms(narrow, decoder_need(narrow), "balanced")
    recipe_forms(narrow, decoder_need(narrow), "exact")
