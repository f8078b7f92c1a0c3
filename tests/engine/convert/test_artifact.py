"""The artifact: its numbers are the checkpoint's within what bits allow, its bytes the arena's, lies are refused."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import SetupError
from contracts.model_folder import ARTIFACT_DIRECTORY_NAME
from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.model_home import ModelFolder
from engine.ops.linear import QuantizedMatrix
from engine.spec import RecipeName
from engine.weights.artifact import Artifact, ArtifactDirectory
from engine.weights.binding import load_weights
from engine.weights.checkpoint import open_weights
from engine.weights.reserve import reserve_recipe, reserve_weights
from support.bound_weights import Values, bind, public_values
from support.conversion import convert_quietly, directory_of, spec_of
from support.hybrid_checkpoint import Shape, random_values, spell, stored_values, write_checkpoint
from support.safetensors_writer import pack_quantized, random_int4

RECIPES: list[RecipeName] = ["exact", "balanced", "compact"]
# Relative error of Gaussian rows: the square root of what the search reaches on groups of 64, and some.
LIMITS = {4: 0.092, 5: 0.047, 6: 0.0235, 8: 0.0062}


@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_are_the_checkpoint_s(checkpoint: Path, tmp_path: Path, values: Values, recipe: RecipeName) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m", recipe)
    spec = spec_of(folder)
    weights, _ = bind(spec, open_weights(folder))
    found = public_values(weights, spec)
    assert set(found) == set(values)
    for name, expected in values.items():
        got = found[name].reshape(expected.shape)
        if expected.ndim != 2 or recipe == "exact" or "in_proj_a" in name or "in_proj_b" in name:
            assert np.array_equal(got, expected), f"{name} is never rounded"
        else:
            error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
            assert 0 < error < LIMITS[8 if recipe == "balanced" else 5], name
    bits = {record.bits for record in directory_of(folder).matrices}
    assert bits == {"exact": {None}, "balanced": {None, 8}, "compact": {None, 5, 6}}[recipe]


def test_wide_models_get_the_bits_of_the_table(tmp_path: Path) -> None:
    shape = Shape(hidden=4096, inner=64, mtp=False, key_heads=1, value_heads=2)
    source = write_checkpoint(tmp_path / "s", shape, stored_values(random_values(shape)))
    folder = convert_quietly(source, tmp_path / "m")
    bits = {record.region.removeprefix("weights."): record.bits for record in directory_of(folder).matrices}
    assert bits["embedding"] == bits["layers.3.qkv"] == bits["layers.3.output"] == 6
    assert bits["layers.0.inputs"] == bits["layers.0.output"] == bits["layers.0.down"] == 5
    assert bits["layers.0.gate_up"] == 4 and bits["layers.0.gates"] is None
    for record in directory_of(folder).matrices:
        assert record.bits is None or record.relative_error < LIMITS[record.bits]


def test_recorded_error_is_the_real_one(checkpoint: Path, tmp_path: Path, values: Values) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m", "compact")
    weights, _ = bind(spec_of(folder), open_weights(folder))
    found = public_values(weights, spec_of(folder))
    parts = ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight")
    lost = sum(float(((found[name] - values[name]).astype(np.float64) ** 2).sum()) for name in parts)
    energy = sum(float((values[name].astype(np.float64) ** 2).sum()) for name in parts)
    records = {record.region: record for record in directory_of(folder).matrices}
    assert records["weights.layers.0.gate_up"].relative_error == pytest.approx((lost / energy) ** 0.5, rel=1e-3)
    assert records["weights.layers.0.gates"].relative_error == 0.0


@pytest.mark.parametrize("recipe", RECIPES)
def test_file_is_the_arena_byte_for_byte(checkpoint: Path, tmp_path: Path, recipe: RecipeName) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m", recipe)
    _, arena = bind(spec_of(folder), open_weights(folder))
    content = folder.weights_path.read_bytes()
    assert len(content) == arena.plan.total_bytes
    end = 0
    for region in arena.plan.regions:
        tensor = arena.tensor(region.name).contiguous().view(torch.uint8).numpy().tobytes()
        assert content[region.offset : region.offset + region.tensor_bytes] == tensor, region.name
        assert not any(content[end : region.offset]), "padding is zeros"
        end = region.offset + region.tensor_bytes
    builder = LayoutBuilder()
    reserve_recipe(spec_of(folder), recipe, builder)
    assert builder.plan() == arena.plan, "what is planned without an artifact is what the artifact takes"


def test_every_digest_is_that_of_the_bytes(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m", "compact")
    content = folder.weights_path.read_bytes()
    for region in directory_of(folder).regions:
        assert hashlib.sha256(content[region.offset : region.offset + region.bytes]).hexdigest() == region.sha256
    folder.verify_digests()


def test_threads_and_repetition_change_no_byte(checkpoint: Path, tmp_path: Path) -> None:
    first = convert_quietly(checkpoint, tmp_path / "a" / "m")
    second = convert_quietly(checkpoint, tmp_path / "b" / "m", threads=3)
    assert first.manifest == second.manifest


def test_progress_counts_the_artifact_s_bytes(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    builder = LayoutBuilder()
    reserve_weights(spec_of(folder), open_weights(folder), builder)
    calls: list[tuple[int, int]] = []
    arena = Arena(builder.plan(), torch.device("cpu"))
    load_weights(spec_of(folder), open_weights(folder), arena, lambda done, total: calls.append((done, total)))
    total = sum(region.tensor_bytes for region in builder.plan().regions)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls}) and calls[-1] == (total, total)


def test_embedding_may_lie_apart(checkpoint: Path, tmp_path: Path, values: Values) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    spec, opened = spec_of(folder), open_weights(folder)
    device, host, together = LayoutBuilder(), LayoutBuilder(), LayoutBuilder()
    reserve_weights(spec, opened, device, host)
    reserve_weights(spec, opened, together)
    assert {region.name for region in host.plan().regions} == {"weights.embedding.codes", "weights.embedding.scales"}
    assert device.plan().total_bytes + host.plan().total_bytes == together.plan().total_bytes
    arena, apart = (Arena(builder.plan(), torch.device("cpu")) for builder in (device, host))
    weights = load_weights(spec, opened, arena, lambda *_: None, apart)
    assert isinstance(weights.embedding, QuantizedMatrix)
    assert weights.embedding.codes.data_ptr() == apart.tensor("weights.embedding.codes").data_ptr()
    found = public_values(weights, spec)
    for name in ("embed_tokens.weight", "lm_head.weight", "mtp.fc.weight"):
        assert np.linalg.norm(found[name] - values[name]) < LIMITS[8] * np.linalg.norm(values[name])


def test_tied_embedding_must_stay_with_the_weights(tmp_path: Path) -> None:
    shape = Shape(mtp=False)
    source = write_checkpoint(tmp_path / "s", shape, stored_values(random_values(shape)))
    folder = convert_quietly(source, tmp_path / "m")
    with pytest.raises(SetupError, match="uses its embedding as head"):
        reserve_weights(spec_of(folder), open_weights(folder), LayoutBuilder(), LayoutBuilder())


@pytest.mark.parametrize("recipe", ["balanced", "compact"])
def test_int4_checkpoints_lose_nothing(tmp_path: Path, recipe: RecipeName) -> None:
    """A symmetric source whose groups contain ours keeps its numbers, whatever bits the recipe gives."""
    shape = Shape(inner=256)
    values = random_values(shape)
    tensors = stored_values(values)
    names = ("layers.0.mlp.down_proj", "layers.2.mlp.down_proj")
    for seed, name in enumerate(names):
        matrix = random_int4(*values[f"{name}.weight"].shape, 128, symmetric=True, seed=seed)
        del tensors[spell(f"{name}.weight")]
        tensors |= {f"{spell(name)}.{suffix}": part for suffix, part in pack_quantized(matrix, symmetric=True).items()}
        values[f"{name}.weight"] = matrix.values
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    source = write_checkpoint(tmp_path / "s", shape, tensors, quantization_config=config)
    folder = convert_quietly(source, tmp_path / "m", recipe)
    found = public_values(bind(spec_of(folder), open_weights(folder))[0], spec_of(folder))
    for name in names:
        assert np.array_equal(found[f"{name}.weight"], values[f"{name}.weight"])


@pytest.mark.parametrize(
    ("region", "dtype", "bits"),
    [
        ("weights.layers.0.gate_up.scales", "<u2", 0x7C00),
        ("weights.layers.1.gates.weight", "<u2", 0x7FC0),
        ("weights.layers.2.decay_log", "<u4", 0x7F80_0000),
    ],
)
def test_poisoned_bytes_are_refused_by_region(
    checkpoint: Path, tmp_path: Path, region: str, dtype: str, bits: int
) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    record = next(record for record in directory_of(folder).regions if record.name == region)
    content = bytearray(folder.weights_path.read_bytes())
    poison = np.array([bits], dtype=dtype).tobytes()
    content[record.offset + record.bytes - len(poison) : record.offset + record.bytes] = poison
    folder.weights_path.write_bytes(content)
    with pytest.raises(SetupError, match=f"region {region} has values that are not finite"):
        bind(spec_of(folder), open_weights(folder))
    with pytest.raises(SetupError, match=r"weights\.bin is damaged: it has SHA-256"):
        folder.verify_digests()


def rewrite(folder: ModelFolder, change: Callable[[ArtifactDirectory], ArtifactDirectory]) -> None:
    path = folder.path / ARTIFACT_DIRECTORY_NAME
    path.write_bytes(msgspec.json.encode(change(directory_of(folder))))


def moved(directory: ArtifactDirectory) -> ArtifactDirectory:
    first = msgspec.structs.replace(directory.regions[0], offset=256)
    return msgspec.structs.replace(directory, regions=[first, *directory.regions[1:]])


def with_bits(directory: ArtifactDirectory) -> ArtifactDirectory:
    first = msgspec.structs.replace(directory.matrices[0], bits=4)
    return msgspec.structs.replace(directory, matrices=[first, *directory.matrices[1:]])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda d: msgspec.structs.replace(d, format_version=2),
            "has format 2 and layout 1, this version reads 1",
        ),
        (lambda d: msgspec.structs.replace(d, layout_version=9), "convert the model again"),
        (lambda d: msgspec.structs.replace(d, weights_bytes=d.weights_bytes - 1), "expected"),
        (lambda d: msgspec.structs.replace(d, regions=d.regions[:-1]), "does not lay out the regions"),
        (lambda d: msgspec.structs.replace(d, matrices=d.matrices[:-1]), "lists other matrices"),
        (moved, "does not lay out the regions"),
        (with_bits, "does not lay out the regions"),
    ],
)
def test_directory_that_lies_is_refused(
    checkpoint: Path, tmp_path: Path, change: Callable[[ArtifactDirectory], ArtifactDirectory], text: str
) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    spec = spec_of(folder)
    rewrite(folder, change)
    with pytest.raises(SetupError, match=text):
        reserve_weights(spec, open_weights(folder), LayoutBuilder())


def test_directory_that_contradicts_itself_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    path = folder.path / ARTIFACT_DIRECTORY_NAME
    text = path.read_text(encoding="utf-8")
    for broken in (text.replace('"num_kv_heads":1', '"num_kv_heads":5'), text[:-5], text.replace('"spec":', '"spek":')):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(SetupError, match=r"weights\.json cannot be read"):
            open_weights(folder)


def test_artifact_of_another_model_is_refused_by_field(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    other = dataclasses.replace(spec_of(folder), norm_eps=1e-5, context_limit=9)
    with pytest.raises(SetupError, match="norm_eps: 1e-06, expected 1e-05; context_limit: 4096, expected 9"):
        reserve_weights(other, open_weights(folder), LayoutBuilder())


def test_short_file_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_quietly(checkpoint, tmp_path / "m")
    folder.weights_path.write_bytes(folder.weights_path.read_bytes()[:-1])
    with pytest.raises(SetupError, match="expected"):
        Artifact(folder.weights_path, directory_of(folder))
