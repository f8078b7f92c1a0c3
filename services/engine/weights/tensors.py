"""A decoder's weights as the model code reads them: dataclasses of arena views. Owns field names and shapes only."""

from dataclasses import dataclass

import torch

from engine.ops.linear import Matrix


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """Projections of one softmax attention layer.

    Shapes:  qkv [num_q_rows + 2 num_kv_rows, hidden], rows q, then k, then v; q and k rows in half-split rotary order
             (pair i of a head is rows i and i + rotary_dims / 2); where attention is gated, the q rows of a head are
             its query rows, then its gate rows. output [hidden, num_heads * head_dim].
             q_norm, k_norm [head_dim] fp32 as stored, None where the model has none.
    """

    qkv: Matrix
    output: Matrix
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class DeltaWeights:
    """Projections and constants of one gated delta layer. Value head j belongs to key head j // (Hv / Hk).

    Shapes:  inputs [num_conv_channels + Hv * V, hidden], rows q, k, v, then the output gate z; gates [2 Hv, hidden],
             rows b (write strength), then a (decay), never quantised; conv [num_conv_channels, conv_width] fp32, the
             last tap is the current token's; decay_log (A_log) and dt_bias [Hv] fp32; norm [V] fp32, used as it is,
             without norm_offset; output [hidden, Hv * V].
    """

    inputs: Matrix
    gates: Matrix
    conv: torch.Tensor
    decay_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    output: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class MlpWeights:
    """Gated feed-forward.

    Shapes:  gate_up [2 * intermediate, hidden], rows gate, then up; down [hidden, intermediate].
    """

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer.

    Shapes:  mixer_norm, mlp_norm [hidden] fp32, as stored: the model adds spec.norm_offset.
    """

    mixer_norm: torch.Tensor
    mixer: AttentionWeights | DeltaWeights
    mlp_norm: torch.Tensor
    mlp: MlpWeights


@dataclass(frozen=True, slots=True, eq=False)
class MtpWeights:
    """The multi-token-prediction head: one attention layer over projection([norm(embedding), norm(hidden)]).

    Shapes:  embedding_norm, hidden_norm, final_norm [hidden] fp32, as stored; projection [hidden, 2 hidden].
    """

    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    projection: Matrix
    layer: LayerWeights
    final_norm: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """Everything one forward pass reads; head is the embedding itself where the model ties them.

    Shapes:  embedding, head [vocab, hidden]; final_norm [hidden] fp32. mtp is None where the model has no such head.
    """

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Matrix
    mtp: MtpWeights | None = None

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one matrix."""
        return self.head is self.embedding
