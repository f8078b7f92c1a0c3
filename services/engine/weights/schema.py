"""The needs of a spec: which tensors a model has, by canonical name, and how they group into the engine's matrices.

Owns names and grouping as data; reads no file, imports no torch. Canonical names are those of the public checkpoints
without their prefix ("layers.0.mlp.up_proj.weight", "mtp.fc.weight"); sources translate their own spelling to them.
Tensors are stacked where one product serves them all and a recipe gives them equal bits.
"""

from dataclasses import dataclass

from engine.spec import ModelSpec
from engine.weights.need import (
    AttentionNeed,
    DecoderNeed,
    DeltaNeed,
    LayerNeed,
    MatrixKind,
    MatrixNeed,
    MlpNeed,
    MtpNeed,
    Part,
    VectorNeed,
)


def decoder_need(spec: ModelSpec) -> DecoderNeed:
    """The tree of a spec."""
    assert spec.mtp_layers in (0, 1), f"{spec.name} has {spec.mtp_layers} MTP layers"
    vocab, hidden = spec.vocab_size, spec.hidden_size
    embedding_kind: MatrixKind = "head" if spec.tied_embedding else "embedding"
    embedding = MatrixNeed("weights.embedding", embedding_kind, (Part("embed_tokens.weight", vocab, hidden),))
    head = MatrixNeed("weights.head", "head", (Part("lm_head.weight", vocab, hidden),))
    return DecoderNeed(
        embedding=embedding,
        layers=tuple(_Layer(spec, f"weights.layers.{i}", f"layers.{i}").need(kind) for i, kind in _numbered(spec)),
        final_norm=VectorNeed("weights.final_norm", "norm.weight", (hidden,)),
        head=None if spec.tied_embedding else head,
        mtp=_mtp_need(spec) if spec.mtp_layers else None,
    )


def _numbered(spec: ModelSpec) -> list[tuple[int, str]]:
    return list(enumerate(spec.schedule))


def _mtp_need(spec: ModelSpec) -> MtpNeed:
    hidden = spec.hidden_size
    layer = _Layer(spec, "weights.mtp.layer", "mtp.layers.0", is_mtp=True)
    return MtpNeed(
        embedding_norm=VectorNeed("weights.mtp.embedding_norm", "mtp.pre_fc_norm_embedding.weight", (hidden,)),
        hidden_norm=VectorNeed("weights.mtp.hidden_norm", "mtp.pre_fc_norm_hidden.weight", (hidden,)),
        projection=MatrixNeed("weights.mtp.projection", "mtp", (Part("mtp.fc.weight", hidden, 2 * hidden),)),
        layer=layer.need("attention"),
        final_norm=VectorNeed("weights.mtp.final_norm", "mtp.norm.weight", (hidden,)),
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's needs; region and tensor are the prefixes of its names."""

    spec: ModelSpec
    region: str
    tensor: str
    is_mtp: bool = False

    def need(self, kind: str) -> LayerNeed:
        hidden, inner = self.spec.hidden_size, self.spec.intermediate_size
        return LayerNeed(
            mixer_norm=self._vector("mixer_norm", "input_layernorm.weight", hidden),
            mixer=self._delta() if kind == "delta" else self._attention(),
            mlp_norm=self._vector("mlp_norm", "post_attention_layernorm.weight", hidden),
            mlp=MlpNeed(
                self._matrix(
                    "gate_up", "mlp_gate_up", ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden)
                ),
                self._matrix("down", "mlp_down", ("mlp.down_proj", hidden, inner)),
            ),
        )

    def _attention(self) -> AttentionNeed:
        dims, hidden = self.spec.attention, self.spec.hidden_size
        qkv = self._matrix(
            "qkv",
            "attention_qkv",
            ("self_attn.q_proj", dims.num_q_rows, hidden),
            ("self_attn.k_proj", dims.num_kv_rows, hidden),
            ("self_attn.v_proj", dims.num_kv_rows, hidden),
        )
        output = self._matrix("output", "attention_output", ("self_attn.o_proj", hidden, dims.num_output_cols))
        if not dims.qk_norm:
            return AttentionNeed(qkv, output, q_norm=None, k_norm=None)
        return AttentionNeed(
            qkv,
            output,
            q_norm=self._vector("q_norm", "self_attn.q_norm.weight", dims.head_dim),
            k_norm=self._vector("k_norm", "self_attn.k_norm.weight", dims.head_dim),
        )

    def _delta(self) -> DeltaNeed:
        dims, hidden = self.spec.delta, self.spec.hidden_size
        assert dims is not None
        heads, num_value_rows = dims.num_value_heads, dims.num_value_heads * dims.value_dim
        channels = dims.num_conv_channels
        return DeltaNeed(
            inputs=self._matrix(
                "inputs",
                "delta_input",
                ("linear_attn.in_proj_qkv", channels, hidden),
                ("linear_attn.in_proj_z", num_value_rows, hidden),
            ),
            gates=self._matrix(
                "gates",
                "delta_gates",
                ("linear_attn.in_proj_b", heads, hidden),
                ("linear_attn.in_proj_a", heads, hidden),
            ),
            conv=self._vector("conv", "linear_attn.conv1d.weight", channels, dims.conv_width),
            decay_log=self._vector("decay_log", "linear_attn.A_log", heads),
            dt_bias=self._vector("dt_bias", "linear_attn.dt_bias", heads),
            norm=self._vector("norm", "linear_attn.norm.weight", dims.value_dim),
            output=self._matrix("output", "delta_output", ("linear_attn.out_proj", hidden, num_value_rows)),
        )

    def _matrix(self, region: str, kind: MatrixKind, *parts: tuple[str, int, int]) -> MatrixNeed:
        stacked = tuple(Part(f"{self.tensor}.{name}.weight", rows, cols) for name, rows, cols in parts)
        return MatrixNeed(f"{self.region}.{region}", "mtp" if self.is_mtp else kind, stacked)

    def _vector(self, region: str, tensor: str, *shape: int) -> VectorNeed:
        return VectorNeed(f"{self.region}.{region}", f"{self.tensor}.{tensor}", shape)
