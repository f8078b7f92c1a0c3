"""Random small models of the hybrid family: transformers' own in fp32, and our decoder on the checkpoint it writes.

The weight scheme is deliberate: slow decay and fan-in scaled matrices keep logits near unit variance, so that fp32
orders of summation agree to about 1e-5. The library's own initialisation is ten times worse and would hide errors.
Whoever imports this pays for transformers.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from engine.hf_config import read_config
from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.model.decoder import Decoder
from engine.model.reserve import reserve_decoder
from engine.spec import KvFormat, ModelSpec
from engine.weights.binding import load_weights
from engine.weights.centres import KvCentres
from engine.weights.checkpoint import Checkpoint
from engine.weights.hf_source import HfSource
from engine.weights.reserve import reserve_weights
from engine.weights.safetensors import SafetensorsFolder
from engine.weights.stored import StoredWeights

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; rotary dims are a quarter of head_dim."""

    layers: int = 4
    hidden: int = 64
    inner: int = 160
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    key_heads: int = 2
    value_heads: int = 6
    delta_dim: int = 16
    vocab: int = 512
    tied: bool = False
    window: int = 2048
    mtp: bool = False

    def config(self) -> Qwen3_5TextConfig:
        """The library's configuration."""
        n = self.head_dim // 8  # rotary frequencies: a quarter of the head, two dims each
        rope = {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_section": [(n + 2) // 3, (n + 1) // 3, n // 3], "mrope_interleaved": True,
        }  # fmt: skip
        return Qwen3_5TextConfig(
            vocab_size=self.vocab, hidden_size=self.hidden, intermediate_size=self.inner,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim, linear_num_key_heads=self.key_heads, linear_num_value_heads=self.value_heads,
            linear_key_head_dim=self.delta_dim, linear_value_head_dim=self.delta_dim, linear_conv_kernel_dim=4,
            max_position_embeddings=self.window, tie_word_embeddings=self.tied, rope_parameters=rope,
            rms_norm_eps=1e-6, attn_implementation="eager",
        )  # fmt: skip


class Hybrid:
    """One random model: the library's module, the checkpoint it wrote, and decoders on that checkpoint."""

    def __init__(self, folder: Path, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        self.reference: Any = Qwen3_5ForCausalLM(shape.config()).eval()
        randomize(self.reference, generator)
        tensors = dict(self.reference.state_dict())
        if shape.tied:
            del tensors["lm_head.weight"]
        self.mtp: dict[str, torch.Tensor] = mtp_tensors(shape, generator) if shape.mtp else {}
        folder.mkdir(parents=True)
        config = self.reference.config.to_dict() | {"mtp_num_hidden_layers": int(shape.mtp)}
        (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
        stored = {name: tensor.contiguous() for name, tensor in (tensors | self.mtp).items()}
        save_file(stored, folder / "model.safetensors")
        self.folder = folder
        self.spec, self.checkpoint = open_folder(folder)

    def decoder(
        self, kv_format: KvFormat = "fp32", *, chunk: int = 512, drafts: int = 0, centres: KvCentres | None = None
    ) -> Decoder:
        """A decoder of its own on the checkpoint."""
        return make_decoder(self.spec, self.checkpoint, kv_format, chunk=chunk, drafts=drafts, centres=centres)

    @torch.no_grad()
    def logits(self, ids: Ids, cuts: list[int] | None = None) -> Floats:
        """The library's logits [T, vocab], fed in pieces of the given lengths, in one when None."""
        cache, parts, position = None, [], 0
        for length in cuts or [len(ids)]:
            piece = torch.from_numpy(ids[None, position : position + length])
            out = self.reference(piece, use_cache=True, **({} if cache is None else {"cache": cache}))
            cache, position = out.cache, position + length
            parts.append(out.logits[0].float())
        assert position == len(ids)
        scores: Floats = torch.cat(parts).numpy()
        return scores

    def ids(self, length: int, seed: int = 0) -> Ids:
        """Random token ids."""
        return np.random.default_rng(seed).integers(0, self.shape.vocab, length)


def open_folder(folder: Path, name: str = "random-hybrid") -> tuple[ModelSpec, Checkpoint]:
    """Spec and weights of a checkpoint folder."""
    config = read_config(folder, name)
    tensors = SafetensorsFolder(folder)
    return config.spec, StoredWeights(lambda _spec: HfSource(config, tensors))


def make_decoder(
    spec: ModelSpec,
    checkpoint: Checkpoint,
    kv_format: KvFormat = "fp32",
    *,
    chunk: int = 512,
    drafts: int = 0,
    context: int | None = None,
    centres: KvCentres | None = None,
) -> Decoder:
    """Plan, allocate and load."""
    builder = LayoutBuilder()
    reserve_weights(spec, checkpoint, builder)
    handles = reserve_decoder(builder, spec, kv_format, context or spec.context_limit, chunk, drafts)
    arena = Arena(builder.plan(), torch.device("cpu"))
    weights = load_weights(spec, checkpoint, arena, lambda _done, _total: None)
    return Decoder(spec, weights, arena, handles, centres)


@torch.no_grad()
def randomize(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Fill a model of the library; see the file's docstring."""
    for name, parameter in module.named_parameters():
        parameter.copy_(random_tensor(name, tuple(parameter.shape), generator))


def random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values that suit the tensor's role."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.1 * noise  # plain
    if len(shape) == 1 and "norm" in name:
        return 0.1 * noise  # applied as 1 + w
    if name.endswith("A_log"):
        return torch.rand(shape, generator=generator) * 2 - 2
    if name.endswith("dt_bias"):
        return 0.5 * noise - 1
    if "embed_tokens" in name:
        return noise
    return 0.5 * noise if "conv1d" in name else noise / math.sqrt(shape[-1])


def mtp_tensors(shape: Shape, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The MTP head's tensors, which the library leaves out."""
    hidden, inner, dim = shape.hidden, shape.inner, shape.head_dim
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (2 * shape.heads * dim, hidden), "self_attn.k_proj": (shape.kv_heads * dim, hidden),
        "self_attn.v_proj": (shape.kv_heads * dim, hidden), "self_attn.o_proj": (hidden, shape.heads * dim),
        "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {f"mtp.layers.0.{name}.weight": axes for name, axes in layer.items()}
    shapes |= {f"mtp.{name}.weight": (hidden,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
    return {name: random_tensor(name, axes, generator) for name, axes in shapes.items()}
