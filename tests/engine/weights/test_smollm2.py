"""The default model's real weights: equal to transformers' reading of the same file, and loaded fast."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.model_home import open_folder
from engine.ops.linear import dequantize
from engine.registry import lookup
from engine.weights.binding import load_weights
from engine.weights.checkpoint import open_weights
from engine.weights.reserve import reserve_weights
from engine.weights.tensors import DecoderWeights

SPEC = lookup("smollm2-135m").spec
LOAD_LIMIT_CPU_S = 1.5  # measured 0.35 s; processor time, because the machine may be busy


def load(smollm2_folder: Path) -> tuple[DecoderWeights, float]:
    folder = open_folder(smollm2_folder.parent.parent, SPEC.name)
    started = time.process_time()
    checkpoint = open_weights(folder)
    builder = LayoutBuilder()
    reserve_weights(SPEC, checkpoint, builder)
    arena = Arena(builder.plan(), torch.device("cpu"))
    weights = load_weights(SPEC, checkpoint, arena, lambda *_: None)
    return weights, time.process_time() - started


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Many small copies on two busy cores wait for each other at every one; one thread does not."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> torch.nn.Module:
    loaded = AutoModelForCausalLM.from_pretrained(smollm2_folder, gguf_file="weights.gguf", dtype=torch.float32)
    model: torch.nn.Module = loaded.model
    return model


@pytest.mark.weights
def test_every_weight_equals_transformers(smollm2_folder: Path, reference: torch.nn.Module) -> None:
    weights, cpu_s = load(smollm2_folder)
    assert cpu_s < LOAD_LIMIT_CPU_S
    theirs = dict(reference.named_parameters())
    assert torch.equal(dequantize(weights.embedding), theirs.pop("embed_tokens.weight"))
    assert torch.equal(weights.final_norm, theirs.pop("norm.weight"))
    assert weights.tied
    for index, layer in enumerate(weights.layers):

        def take(name: str, index: int = index) -> torch.Tensor:
            return theirs.pop(f"layers.{index}.{name}.weight")

        qkv = torch.cat([take(f"self_attn.{part}_proj") for part in "qkv"])
        assert torch.equal(dequantize(layer.mixer.qkv), qkv)
        assert torch.equal(dequantize(layer.mixer.output), take("self_attn.o_proj"))
        gate_up = torch.cat([take("mlp.gate_proj"), take("mlp.up_proj")])
        assert torch.equal(dequantize(layer.mlp.gate_up), gate_up)
        assert torch.equal(dequantize(layer.mlp.down), take("mlp.down_proj"))
        assert torch.equal(layer.mixer_norm, take("input_layernorm"))
        assert torch.equal(layer.mlp_norm, take("post_attention_layernorm"))
    assert theirs == {}, "a weight that we do not hold"


@pytest.mark.weights
def test_packed_form_takes_the_file_s_bytes(smollm2_folder: Path) -> None:
    folder = open_folder(smollm2_folder.parent.parent, SPEC.name)
    builder = LayoutBuilder()
    reserve_weights(SPEC, open_weights(folder), builder)
    plan = builder.plan()
    assert sum(region.tensor_bytes for region in plan.regions) == sum(
        e.bytes for e in folder.read_tensor_directory().tensors
    )
