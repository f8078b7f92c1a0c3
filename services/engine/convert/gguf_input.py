"""A GGUF file as input of a conversion: its spec from metadata, its tensors of any kind, its vocabulary as text files.

Owns the translation through the `gguf` package's tables and decoders; arrangement is undone by `weights/gguf_dialect`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from contracts.errors import SetupError
from contracts.generate import Sampling
from engine.convert.text_files import TextFiles, count_tokens
from engine.gguf_tokenizer import build_tokenizer
from engine.spec import AttentionDims, DeltaDims, LayerKind, ModelSpec
from engine.weights.gguf import GgufHeader, read_header
from engine.weights.gguf_file import STORAGE_KINDS, GgufFile, StorageKind
from engine.weights.gguf_source import GgufSource, decode_native

ARCHITECTURE = "qwen35"


@dataclass(frozen=True, slots=True, eq=False)
class GgufInput:
    """Spec, tensors and text of one file."""

    spec: ModelSpec
    source: GgufSource
    text: TextFiles


def open_gguf(path: Path, name: str) -> GgufInput:
    """Open a file of architecture qwen35 as a model of the name.

    Raises: SetupError for another architecture, missing metadata, or a vocabulary that does not fit.
    """
    header = read_header(path)
    if header.architecture != ARCHITECTURE:
        raise SetupError(
            f"{path}: architecture {header.architecture!r} cannot be converted by this version; "
            f"supported: {ARCHITECTURE}"
        )
    spec = _Metadata(path, header).spec(name)
    file = GgufFile(path, header.to_directory(path.stat().st_size, ""), _all_kinds())
    return GgufInput(spec, GgufSource(spec, file, _decode), _text_files(path, header))


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Reads numbers of the architecture's keys."""

    path: Path
    header: GgufHeader

    def spec(self, name: str) -> ModelSpec:
        mtp_layers = self._optional("nextn_predict_layers")
        num_layers = self._int("block_count") - mtp_layers
        interval = self._optional("full_attention_interval", 4)
        schedule: tuple[LayerKind, ...] = tuple(
            "attention" if (index + 1) % interval == 0 else "delta" for index in range(num_layers)
        )
        heads = self._int("ssm.time_step_rank")
        names = {tensor.name for tensor in self.header.tensors}
        if mtp_layers not in (0, 1) or num_layers < 1 or "delta" not in schedule:
            raise SetupError(f"{self.path}: {num_layers} layers and {mtp_layers} MTP layers are not supported")
        return ModelSpec(
            name=name,
            family="qwen3_5",
            vocab_size=self._vocab_size(),
            hidden_size=self._int("embedding_length"),
            intermediate_size=self._int("feed_forward_length"),
            schedule=schedule,
            attention=self._attention(),
            delta=DeltaDims(
                num_key_heads=self._int("ssm.group_count"),
                num_value_heads=heads,
                key_dim=self._int("ssm.state_size"),
                value_dim=self._int("ssm.inner_size") // heads,
                conv_width=self._int("ssm.conv_kernel"),
            ),
            norm_eps=round(self._float("attention.layer_norm_rms_epsilon"), 12),
            norm_offset=1.0,
            tied_embedding="output.weight" not in names,
            context_limit=self._int("context_length"),
            mtp_layers=mtp_layers,
            default_kv_format="bf16",
        )

    def _attention(self) -> AttentionDims:
        sections = self.header.rope_sections[:3]
        rotary_dims = self._int("rope.dimension_count")
        if len(sections) != 3 or sum(sections) != rotary_dims // 2:
            raise SetupError(f"{self.path}: rope.dimension_sections {sections} are not half of {rotary_dims} dims")
        return AttentionDims(
            num_heads=self._int("attention.head_count"),
            num_kv_heads=self._int("attention.head_count_kv"),
            head_dim=self._int("attention.key_length"),
            rotary_dims=rotary_dims,
            rope_theta=self._float("rope.freq_base"),
            gated=True,
            qk_norm=True,
            mrope_sections=(sections[0], sections[1], sections[2]),
        )

    def _vocab_size(self) -> int:
        for tensor in self.header.tensors:
            if tensor.name == "token_embd.weight":
                return tensor.shape[0]
        raise SetupError(f"{self.path}: tensors missing: token_embd.weight")

    def _int(self, key: str) -> int:
        value = self.header.metadata.get(f"{ARCHITECTURE}.{key}")
        if not isinstance(value, int) or value < 1:
            raise SetupError(f"{self.path}: metadata {ARCHITECTURE}.{key} is {value!r}, expected a positive integer")
        return value

    def _optional(self, key: str, default: int = 0) -> int:
        value = self.header.metadata.get(f"{ARCHITECTURE}.{key}", default)
        if not isinstance(value, int) or value < 0:
            raise SetupError(f"{self.path}: metadata {ARCHITECTURE}.{key} is {value!r}, expected an integer")
        return value

    def _float(self, key: str) -> float:
        value = self.header.metadata.get(f"{ARCHITECTURE}.{key}")
        if not isinstance(value, float | int) or not value > 0:
            raise SetupError(f"{self.path}: metadata {ARCHITECTURE}.{key} is {value!r}, expected a positive number")
        return float(value)


def _text_files(path: Path, header: GgufHeader) -> TextFiles:
    vocabulary = header.vocabulary
    tokenizer = build_tokenizer(vocabulary)
    eos = header.metadata.get("tokenizer.ggml.eos_token_id")
    bos = header.metadata.get("tokenizer.ggml.bos_token_id")
    if not isinstance(eos, int) or tokenizer.id_to_token(eos) is None:
        raise SetupError(f"{path}: tokenizer.ggml.eos_token_id is {eos!r}, which is no token")
    return TextFiles(
        tokenizer_json=tokenizer.to_str().encode(),
        num_tokens=count_tokens(tokenizer),
        template=vocabulary.chat_template,
        stop_token_ids=(eos,),
        bos_token=(tokenizer.id_to_token(bos) or "") if isinstance(bos, int) else "",
        eos_token=tokenizer.id_to_token(eos) or "",
        default_sampling=Sampling(),
    )


def _all_kinds() -> dict[str, StorageKind]:
    """Every kind the package can decode; those of STORAGE_KINDS stay as they are."""
    others = {
        kind.name: StorageKind(kind.name, elements, num_bytes, None)
        for kind, (elements, num_bytes) in GGML_QUANT_SIZES.items()
        if elements > 1
    }
    return others | dict(STORAGE_KINDS)


def _decode(raw: NDArray[np.uint8], kind: StorageKind) -> NDArray[np.float32]:
    if kind.name in STORAGE_KINDS:
        return decode_native(raw, kind)
    try:
        values = dequantize(raw, GGMLQuantizationType[kind.name])
    except NotImplementedError as error:
        raise SetupError(f"tensors stored as {kind.name} cannot be converted by this version") from error
    return np.asarray(values, dtype=np.float32)
