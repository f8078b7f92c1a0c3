"""A decoder's weights as the model code reads them: dataclasses of arena views. Owns field names and shapes only."""

from dataclasses import dataclass

import torch

from engine.ops.linear import Matrix


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """Projections of one softmax attention layer.

    Shapes:  qkv [num_q_rows + 2 num_kv_rows, hidden], rows q, then k, then v; q and k rows in half-split rotary order
             (pair i of a head is rows i and i + rotary_dims / 2). output [hidden, num_heads * head_dim].
             q_norm, k_norm [head_dim] fp32, None where the model has none.
    """

    qkv: Matrix
    output: Matrix
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


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
    mixer: AttentionWeights
    mlp_norm: torch.Tensor
    mlp: MlpWeights


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """Everything one forward pass reads; head is the embedding itself where the model ties them.

    Shapes:  embedding, head [vocab, hidden]; final_norm [hidden] fp32.
    """

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Matrix

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one matrix."""
        return self.head is self.embedding
