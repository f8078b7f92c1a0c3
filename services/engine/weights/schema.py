"""Which tensors a model needs, by its family's names, and how they group into the engine's matrices. Owns names and
shapes as data; reads no file, imports no torch.

The tree mirrors `tensors.DecoderWeights` with a Need at every leaf. `check_checkpoint` compares it with what is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose

from contracts.errors import SetupError
from engine.spec import ModelSpec
from engine.weights.checkpoint import Checkpoint

_FLOAT32_TOLERANCE = 1e-6  # metadata holds float32, the spec holds what was meant


@dataclass(frozen=True, slots=True)
class Part:
    """A stored matrix that becomes consecutive rows of an engine matrix.

    paired_heads: number of heads whose rows alternate rotary pairs (i, i + half) and must be put back into half-split
    order; None when the rows are in order.
    """

    tensor: str
    num_rows: int
    num_cols: int
    paired_heads: int | None = None


@dataclass(frozen=True, slots=True)
class MatrixNeed:
    """A matrix of the engine and the stored parts it is stacked from; region is its name in the memory plan."""

    region: str
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
    """An fp32 vector of the engine."""

    region: str
    tensor: str
    length: int


@dataclass(frozen=True, slots=True)
class AttentionNeed:
    """Mirrors AttentionWeights."""

    qkv: MatrixNeed
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
    mixer: AttentionNeed
    mlp_norm: VectorNeed
    mlp: MlpNeed


@dataclass(frozen=True, slots=True)
class DecoderNeed:
    """Mirrors DecoderWeights; head is None when the embedding serves as head."""

    embedding: MatrixNeed
    layers: tuple[LayerNeed, ...]
    final_norm: VectorNeed
    head: MatrixNeed | None

    def matrices(self) -> Iterator[MatrixNeed]:
        """Every matrix, in the order of the memory plan."""
        yield self.embedding
        for layer in self.layers:
            yield from (layer.mixer.qkv, layer.mixer.output, layer.mlp.gate_up, layer.mlp.down)
        if self.head is not None:
            yield self.head

    def vectors(self) -> Iterator[VectorNeed]:
        """Every vector, in the order of the memory plan."""
        for layer in self.layers:
            yield from (layer.mixer_norm, layer.mlp_norm)
        yield self.final_norm


def decoder_need(spec: ModelSpec) -> DecoderNeed:
    """The tree of a spec.

    Raises: SetupError for a family whose checkpoints this version cannot read.
    """
    if spec.family != "llama":
        raise SetupError(f"checkpoints of family {spec.family} are not supported by this version; supported: llama")
    vocab, hidden = spec.vocab_size, spec.hidden_size
    embedding = MatrixNeed("weights.embedding", (Part("token_embd.weight", vocab, hidden),))
    head = MatrixNeed("weights.head", (Part("output.weight", vocab, hidden),))
    return DecoderNeed(
        embedding=embedding,
        layers=tuple(_llama_layer(spec, index) for index in range(spec.num_layers)),
        final_norm=VectorNeed("weights.final_norm", "output_norm.weight", hidden),
        head=None if spec.tied_embedding else head,
    )


def check_checkpoint(spec: ModelSpec, need: DecoderNeed, checkpoint: Checkpoint) -> None:
    """Compare names, shapes, kinds and metadata with what the spec needs, before any memory is taken.

    Raises: SetupError naming up to five tensors that are missing, surplus or misshapen, or the metadata that differs.
    """
    _check_metadata(spec, checkpoint)
    wanted: dict[str, list[int]] = {
        part.tensor: [part.num_rows, part.num_cols] for matrix in need.matrices() for part in matrix.parts
    }
    wanted |= {vector.tensor: [vector.length] for vector in need.vectors()}
    found = checkpoint.entries
    _refuse(checkpoint, "missing", [name for name in wanted if name not in found])
    _refuse(checkpoint, "not part of this model", [name for name in found if name not in wanted])
    wrong = [
        f"{name} is {found[name].shape}, expected {shape}"
        for name, shape in wanted.items()
        if found[name].shape != shape
    ]
    _refuse(checkpoint, "misshapen", wrong)
    for vector in need.vectors():
        kind = checkpoint.kind(vector.tensor)
        if kind.bits is not None:
            raise SetupError(f"{checkpoint.path}: vector {vector.tensor} is stored as {kind.name}, expected F32 or F16")


def _llama_layer(spec: ModelSpec, index: int) -> LayerNeed:
    dims, hidden, inner = spec.attention, spec.hidden_size, spec.intermediate_size
    assert spec.schedule[index] == "attention" and not dims.gated and not dims.qk_norm, "not a llama layer"
    assert dims.rotary_dims == dims.head_dim, "llama checkpoints pair the rows of a whole head"
    region, stored = f"weights.layers.{index}", f"blk.{index}"
    qkv = (
        Part(f"{stored}.attn_q.weight", dims.num_q_rows, hidden, paired_heads=dims.num_heads),
        Part(f"{stored}.attn_k.weight", dims.num_kv_rows, hidden, paired_heads=dims.num_kv_heads),
        Part(f"{stored}.attn_v.weight", dims.num_kv_rows, hidden),
    )
    gate_up = (Part(f"{stored}.ffn_gate.weight", inner, hidden), Part(f"{stored}.ffn_up.weight", inner, hidden))
    output = Part(f"{stored}.attn_output.weight", hidden, dims.num_output_cols)
    return LayerNeed(
        mixer_norm=VectorNeed(f"{region}.mixer_norm", f"{stored}.attn_norm.weight", hidden),
        mixer=AttentionNeed(MatrixNeed(f"{region}.qkv", qkv), MatrixNeed(f"{region}.output", (output,))),
        mlp_norm=VectorNeed(f"{region}.mlp_norm", f"{stored}.ffn_norm.weight", hidden),
        mlp=MlpNeed(
            MatrixNeed(f"{region}.gate_up", gate_up),
            MatrixNeed(f"{region}.down", (Part(f"{stored}.ffn_down.weight", hidden, inner),)),
        ),
    )


def _check_metadata(spec: ModelSpec, checkpoint: Checkpoint) -> None:
    directory = checkpoint.directory
    if directory.architecture != spec.family:
        raise SetupError(
            f"{checkpoint.path} holds architecture {directory.architecture!r}, {spec.name} is {spec.family}"
        )
    dims = spec.attention
    wanted: dict[str, float] = {
        "block_count": spec.num_layers,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": dims.num_heads,
        "attention.head_count_kv": dims.num_kv_heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.freq_base": dims.rope_theta,
        "rope.dimension_count": dims.rotary_dims,
        "context_length": spec.context_limit,
    }
    for key, expected in wanted.items():
        value = directory.metadata.get(f"{directory.architecture}.{key}")
        if not isinstance(value, int | float) or not isclose(value, expected, rel_tol=_FLOAT32_TOLERANCE):
            raise SetupError(f"{checkpoint.path}: metadata {key} is {value!r}, {spec.name} has {expected!r}")


def _refuse(checkpoint: Checkpoint, fault: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise SetupError(f"{checkpoint.path}: tensors {fault}: {'; '.join(names[:5])}{more}")
