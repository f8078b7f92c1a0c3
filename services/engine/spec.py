"""What a model is, as data: layer schedule, dimensions, norms, limits. Owns shapes; holds no weight, imports no torch.

One decoder runs every registered model by reading a ModelSpec. Registry entries are specs (`registry.py`); tests make
tiny ones of their own.
"""

from dataclasses import dataclass, fields
from typing import Literal

LayerKind = Literal["attention", "delta"]
Family = Literal["llama", "qwen3_5"]
KvFormat = Literal["fp32", "bf16", "int8", "rk4v4-e8"]
RecipeName = Literal["exact", "balanced", "compact"]
"""How a model's weights are made smaller when it is converted; `weights/recipe` says what each does."""


@dataclass(frozen=True, slots=True)
class AttentionDims:
    """Softmax attention with grouped key/value heads.

    rotary_dims is how many leading dims of a head rotate, as half-split pairs (i, i + rotary_dims / 2); the rest pass.
    gated: q rows hold [query | gate] per head and the output is multiplied by sigmoid(gate).
    mrope_sections: frequencies per (time, height, width) of interleaved multi-axis RoPE, None for one axis.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dims: int
    rope_theta: float
    gated: bool = False
    qk_norm: bool = False
    mrope_sections: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0, "every key/value head serves the same number of query heads"
        assert self.rotary_dims % 2 == 0 and 0 < self.rotary_dims <= self.head_dim

    @property
    def num_q_rows(self) -> int:
        """Output rows of the query projection, gate rows included."""
        return self.num_heads * self.head_dim * (2 if self.gated else 1)

    @property
    def num_kv_rows(self) -> int:
        """Output rows of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_output_cols(self) -> int:
        """Input width of the output projection."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class DeltaDims:
    """Gated delta rule: value head j reads key head j // (num_value_heads / num_key_heads)."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    def __post_init__(self) -> None:
        assert self.num_value_heads % self.num_key_heads == 0, "every key head serves the same number of value heads"

    @property
    def num_conv_channels(self) -> int:
        """Channels of the causal convolution: q, k and v side by side."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the engine must know of a model besides its weights.

    family names how its checkpoints spell and lay out tensors; the schedule alone decides what runs.
    norm_offset is added to the stored RMSNorm weight (1.0 where checkpoints hold zero-centred weights).
    context_limit counts prompt and output tokens together. dead_token_rows: rows at the end of the vocabulary that no
    token id uses, whose logits must never win.
    """

    name: str
    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    schedule: tuple[LayerKind, ...]
    attention: AttentionDims
    delta: DeltaDims | None
    norm_eps: float
    norm_offset: float
    tied_embedding: bool
    context_limit: int
    mtp_layers: int
    default_kv_format: KvFormat
    dead_token_rows: int = 0

    def __post_init__(self) -> None:
        assert ("delta" in self.schedule) == (self.delta is not None), "delta dims go with delta layers"

    @property
    def num_layers(self) -> int:
        """Decoder layers of both kinds."""
        return len(self.schedule)

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep keys and values for every position."""
        return self.schedule.count("attention")


def describe_differences(wanted: ModelSpec, found: ModelSpec, *, ignore: frozenset[str] = frozenset({"name"})) -> str:
    """The fields in which two specs differ, as "field: found, expected wanted"; empty when they are equal."""
    pairs = [
        (field.name, getattr(found, field.name), getattr(wanted, field.name))
        for field in fields(ModelSpec)
        if field.name not in ignore
    ]
    return "; ".join(f"{name}: {have!r}, expected {want!r}" for name, have, want in pairs if have != want)
