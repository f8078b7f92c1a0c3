"""How GGUF files of each architecture spell and arrange tensors: names, row orders, stored values. Owns these rules as
data and index arrays; reads no file.

Source:  the format's public converters. llama: q and k rows alternate rotary pairs. qwen35: norm weights are stored
         plus one, A_log as -exp(A_log), and value heads are tiled (the first head of every key head, then the second
         ones) instead of grouped by key head; the MTP layer is the block behind the last one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.spec import ModelSpec

_TOP = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_LLAMA_BLOCK = _ATTENTION | {"ffn_norm.weight": "post_attention_layernorm.weight"}
_QWEN35_BLOCK = _ATTENTION | {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
_QWEN35_MTP = {
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
}


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """What undoes a stored tensor's arrangement: the stored row of each engine row, the stored column of each engine
    column, and a function of the numbers; None where nothing is to be done."""

    row_order: NDArray[np.intp] | None = None
    column_order: NDArray[np.intp] | None = None
    restore: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    @property
    def keeps_codes(self) -> bool:
        """Whether stored codes and scales can be handed over: rows may move, columns and numbers may not."""
        return self.column_order is None and self.restore is None


class Dialect(Protocol):
    """One architecture's rules for one spec."""

    @property
    def names(self) -> Mapping[str, str]:
        """Stored name to canonical name."""
        ...

    def arrangement(self, name: str) -> Arrangement:
        """Of a canonical name."""
        ...


def choose_dialect(spec: ModelSpec) -> Dialect:
    """The dialect that GGUF files of the spec's family are written in."""
    return LlamaDialect(spec) if spec.family == "llama" else Qwen35Dialect(spec)


class LlamaDialect:
    """Architecture `llama`."""

    def __init__(self, spec: ModelSpec) -> None:
        assert spec.attention.rotary_dims == spec.attention.head_dim, "llama files pair the rows of a whole head"
        self._spec = spec
        self.names: Mapping[str, str] = _TOP | {
            f"blk.{index}.{stored}": f"layers.{index}.{name}"
            for index in range(spec.num_layers)
            for stored, name in _LLAMA_BLOCK.items()
        }

    def arrangement(self, name: str) -> Arrangement:
        """Rows of q and k go back from adjacent pairs to halves."""
        dims = self._spec.attention
        if name.endswith("self_attn.q_proj.weight"):
            return Arrangement(row_order=_half_split_order(dims.num_q_rows, dims.num_heads))
        if name.endswith("self_attn.k_proj.weight"):
            return Arrangement(row_order=_half_split_order(dims.num_kv_rows, dims.num_kv_heads))
        return Arrangement()


class Qwen35Dialect:
    """Architecture `qwen35`."""

    def __init__(self, spec: ModelSpec) -> None:
        assert spec.delta is not None
        self._delta = spec.delta
        names = _TOP | {
            f"blk.{index}.{stored}": f"layers.{index}.{name}"
            for index in range(spec.num_layers)
            for stored, name in _QWEN35_BLOCK.items()
        }
        if spec.mtp_layers:
            block = f"blk.{spec.num_layers}"
            names |= {f"{block}.{stored}": f"mtp.layers.0.{name}" for stored, name in _QWEN35_BLOCK.items()}
            names |= {f"{block}.{stored}": name for stored, name in _QWEN35_MTP.items()}
        self.names: Mapping[str, str] = names

    def arrangement(self, name: str) -> Arrangement:
        """Value heads go back to their key head; plus one and -exp are undone."""
        dims = self._delta
        key_rows, value_dim = 2 * dims.num_key_heads * dims.key_dim, dims.value_dim
        match name.rpartition("linear_attn.")[2]:
            case "in_proj_qkv.weight" | "conv1d.weight":
                return Arrangement(row_order=self._grouped_order(value_dim, first=key_rows))
            case "in_proj_z.weight":
                return Arrangement(row_order=self._grouped_order(value_dim))
            case "in_proj_a.weight" | "in_proj_b.weight" | "dt_bias":
                return Arrangement(row_order=self._grouped_order(1))
            case "A_log":
                return Arrangement(row_order=self._grouped_order(1), restore=_log_of_negative)
            case "out_proj.weight":
                return Arrangement(column_order=self._grouped_order(value_dim))
            case "norm.weight" if "linear_attn" in name:
                return Arrangement()  # the only norm that is used as it is stored
        if _is_norm(name):
            return Arrangement(restore=_minus_one)
        return Arrangement()

    def _grouped_order(self, width: int, first: int = 0) -> NDArray[np.intp]:
        """Stored index of each engine index: `first` untouched ones, then value heads of `width` each."""
        num_keys, num_values = self._delta.num_key_heads, self._delta.num_value_heads
        share = num_values // num_keys
        heads = (
            np.arange(num_values).reshape(share, num_keys).T.reshape(-1)
        )  # head j lies at (j % share) keys + j // share
        order = (heads[:, np.newaxis] * width + np.arange(width)).reshape(-1)
        return np.concatenate([np.arange(first), first + order])


def require_architecture(path: object, architecture: str, spec: ModelSpec) -> None:
    """Raises: SetupError when a file's architecture is not the one of the spec's family."""
    expected = "llama" if spec.family == "llama" else "qwen35"
    if architecture != expected:
        raise SetupError(f"{path} holds architecture {architecture!r}, {spec.name} is {spec.family}")


def _is_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"))


def _half_split_order(num_rows: int, num_heads: int) -> NDArray[np.intp]:
    """Stored row of each engine row: a head's stored rows go 0, half, 1, half + 1, ..."""
    pairs = np.arange(num_rows).reshape(num_heads, -1, 2)
    return pairs.swapaxes(1, 2).reshape(-1)


def _minus_one(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values - np.float32(1)


def _log_of_negative(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore", divide="ignore"):  # a positive value becomes NaN and is refused by name
        return np.log(-values.astype(np.float64)).astype(np.float32)
