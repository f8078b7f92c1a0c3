"""What a model's weights are, as a tree of engine matrices and vectors with the tensors they are made of.

Owns the shape of the tree, which mirrors `tensors.DecoderWeights` with a Need at every leaf; `schema` grows it from a
spec. Tensors have canonical names here, whatever a file calls them. No file, no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

MatrixKind = Literal[
    "embedding",
    "head",
    "attention_qkv",
    "attention_output",
    "delta_input",
    "delta_gates",
    "delta_output",
    "mlp_gate_up",
    "mlp_down",
    "mtp",
]
"""What a matrix is for; recipes give bits by kind. A tied embedding is a head; all matrices of the MTP head are mtp."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor that becomes consecutive rows of an engine matrix; its shape is [num_rows, num_cols]."""

    tensor: str
    num_rows: int
    num_cols: int


@dataclass(frozen=True, slots=True)
class MatrixNeed:
    """A matrix of the engine and the tensors it is stacked from; region is its name in the memory plan."""

    region: str
    kind: MatrixKind
    parts: tuple[Part, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all parts together."""
        return sum(part.num_rows for part in self.parts)

    @property
    def num_cols(self) -> int:
        """Columns, the same in every part."""
        return self.parts[0].num_cols


@dataclass(frozen=True, slots=True)
class VectorNeed:
    """An fp32 tensor of the engine that is never quantised, as the file has it: norms, taps, decay."""

    region: str
    tensor: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class AttentionNeed:
    """Mirrors AttentionWeights."""

    qkv: MatrixNeed
    output: MatrixNeed
    q_norm: VectorNeed | None
    k_norm: VectorNeed | None


@dataclass(frozen=True, slots=True)
class DeltaNeed:
    """Mirrors DeltaWeights."""

    inputs: MatrixNeed
    gates: MatrixNeed
    conv: VectorNeed
    decay_log: VectorNeed
    dt_bias: VectorNeed
    norm: VectorNeed
    output: MatrixNeed


@dataclass(frozen=True, slots=True)
class MlpNeed:
    """Mirrors MlpWeights."""

    gate_up: MatrixNeed
    down: MatrixNeed


@dataclass(frozen=True, slots=True)
class LayerNeed:
    """Mirrors LayerWeights."""

    mixer_norm: VectorNeed
    mixer: AttentionNeed | DeltaNeed
    mlp_norm: VectorNeed
    mlp: MlpNeed

    def matrices(self) -> Iterator[MatrixNeed]:
        """Every matrix of the layer."""
        if isinstance(self.mixer, DeltaNeed):
            yield from (self.mixer.inputs, self.mixer.gates, self.mixer.output)
        else:
            yield from (self.mixer.qkv, self.mixer.output)
        yield from (self.mlp.gate_up, self.mlp.down)

    def vectors(self) -> Iterator[VectorNeed]:
        """Every vector of the layer."""
        yield self.mixer_norm
        if isinstance(self.mixer, DeltaNeed):
            yield from (self.mixer.conv, self.mixer.decay_log, self.mixer.dt_bias, self.mixer.norm)
        else:
            yield from (norm for norm in (self.mixer.q_norm, self.mixer.k_norm) if norm is not None)
        yield self.mlp_norm


@dataclass(frozen=True, slots=True)
class MtpNeed:
    """Mirrors MtpWeights."""

    embedding_norm: VectorNeed
    hidden_norm: VectorNeed
    projection: MatrixNeed
    layer: LayerNeed
    final_norm: VectorNeed


@dataclass(frozen=True, slots=True)
class DecoderNeed:
    """Mirrors DecoderWeights; head is None when the embedding serves as head."""

    embedding: MatrixNeed
    layers: tuple[LayerNeed, ...]
    final_norm: VectorNeed
    head: MatrixNeed | None
    mtp: MtpNeed | None

    def matrices(self) -> Iterator[MatrixNeed]:
        """Every matrix, in the order of the memory plan."""
        yield self.embedding
        for layer in self.layers:
            yield from layer.matrices()
        if self.head is not None:
            yield self.head
        if self.mtp is not None:
            yield self.mtp.projection
            yield from self.mtp.layer.matrices()

    def vectors(self) -> Iterator[VectorNeed]:
        """Every vector, in the order of the memory plan."""
        for layer in self.layers:
            yield from layer.vectors()
        yield self.final_norm
        if self.mtp is not None:
            yield from (self.mtp.embedding_norm, self.mtp.hidden_norm)
            yield from self.mtp.layer.vectors()
            yield self.mtp.final_norm
