"""Writes a public checkpoint of the hybrid family as a GGUF file of architecture qwen35, by the format's rules.

Independent of the engine: names come from the `gguf` package's tables, value heads are moved one at a time.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import MODEL_ARCH, MODEL_TENSOR, TENSOR_NAMES
from gguf.quants import quantize
from numpy.typing import NDArray

Values = dict[str, NDArray[np.float32]]
_NEXTN = {
    "mtp.fc": MODEL_TENSOR.NEXTN_EH_PROJ,
    "mtp.pre_fc_norm_embedding": MODEL_TENSOR.NEXTN_ENORM,
    "mtp.pre_fc_norm_hidden": MODEL_TENSOR.NEXTN_HNORM,
    "mtp.norm": MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
}
Choose = Callable[[str], str]


def write_hybrid_gguf(path: Path, checkpoint: Path, values: Values, kind_of: Choose, **changes: Any) -> None:
    """values by public name without the prefix; kind_of(public name) is the storage kind of a matrix.

    changes replace metadata of the architecture by key, None leaves it out.
    """
    text = json.loads((checkpoint / "config.json").read_text())["text_config"]
    writer = GGUFWriter(path, "qwen35")
    for key, value in (metadata(text) | changes).items():
        if isinstance(value, list):
            writer.add_array(f"qwen35.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"qwen35.{key}", value)
        elif value is not None:
            writer.add_uint32(f"qwen35.{key}", value)
    _add_vocabulary(writer, checkpoint, text["vocab_size"])
    names = gguf.get_tensor_name_map(MODEL_ARCH.QWEN35, text["num_hidden_layers"] + text["mtp_num_hidden_layers"])
    for name, numbers in values.items():
        arranged = arrange(name, numbers, text)
        kind = GGMLQuantizationType[kind_of(name) if arranged.ndim == 2 and "conv1d" not in name else "F32"]
        plain = {"F32": np.float32, "F16": np.float16}
        stored = arranged.astype(plain[kind.name]) if kind.name in plain else quantize(arranged, kind)
        writer.add_tensor(stored_name(name, names, text["num_hidden_layers"]), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata(text: Mapping[str, Any]) -> dict[str, Any]:
    rope = text["rope_parameters"]
    heads = text["linear_num_value_heads"]
    return {
        "block_count": text["num_hidden_layers"] + text["mtp_num_hidden_layers"],
        "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"],
        "feed_forward_length": text["intermediate_size"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": text["num_key_value_heads"],
        "attention.key_length": text["head_dim"],
        "attention.value_length": text["head_dim"],
        "attention.layer_norm_rms_epsilon": float(text["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(text["head_dim"] * rope["partial_rotary_factor"]),
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "ssm.conv_kernel": text["linear_conv_kernel_dim"],
        "ssm.state_size": text["linear_key_head_dim"],
        "ssm.group_count": text["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * text["linear_value_head_dim"],
        "full_attention_interval": text["full_attention_interval"],
        "nextn_predict_layers": text["mtp_num_hidden_layers"],
    }


def stored_name(name: str, names: gguf.TensorNameMap, num_layers: int) -> str:
    """By the package's tables; the MTP layer is the block behind the last."""
    module, _, suffix = name.rpartition(".")
    if module in _NEXTN:
        return f"{TENSOR_NAMES[_NEXTN[module]].format(bid=num_layers)}.{suffix}"
    public = name.replace("mtp.layers.0", f"layers.{num_layers}").replace("dt_bias", "dt_proj.bias")
    full = public if public.startswith("lm_head") else f"model.{public}"
    found = names.get_name(full, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return str(found)


def arrange(name: str, numbers: NDArray[np.float32], text: Mapping[str, Any]) -> NDArray[np.float32]:
    """Stored numbers: norms plus one, A_log as -exp, value head j at place (j % share) * key heads + j // share."""
    keys, heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    key_rows = 2 * keys * text["linear_key_head_dim"]
    width = text["linear_value_head_dim"]
    if name.endswith("conv1d.weight"):
        numbers = numbers[:, 0]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate([numbers[:key_rows], tiled(numbers[key_rows:], keys, heads, width)])
    if name.endswith("in_proj_z.weight"):
        return tiled(numbers, keys, heads, width)
    if name.endswith(("in_proj_a.weight", "in_proj_b.weight", "dt_bias")):
        return tiled(numbers, keys, heads, 1)
    if name.endswith("A_log"):
        return tiled(-np.exp(numbers), keys, heads, 1)
    if name.endswith("out_proj.weight"):
        return np.ascontiguousarray(tiled(numbers.T, keys, heads, width).T)
    if "norm" in name and "linear_attn.norm" not in name:
        return numbers + 1
    return numbers


def tiled(rows: NDArray[np.float32], num_keys: int, num_heads: int, width: int) -> NDArray[np.float32]:
    share = num_heads // num_keys
    moved = np.empty_like(rows)
    for head in range(num_heads):
        place = head % share * num_keys + head // share
        moved[place * width : (place + 1) * width] = rows[head * width : (head + 1) * width]
    return moved


def _add_vocabulary(writer: GGUFWriter, checkpoint: Path, vocab_size: int) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    by_id = {index: (token, 1) for token, index in tokenizer["model"]["vocab"].items()}
    by_id |= {t["id"]: (t["content"], 3 if t["special"] else 4) for t in tokenizer["added_tokens"]}
    listed = [by_id.get(index, (f"[PAD{index}]", 5)) for index in range(vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([token for token, _ in listed])
    writer.add_token_types([kind for _, kind in listed])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(generation["eos_token_id"][0])
    writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())
