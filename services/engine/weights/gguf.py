"""A GGUF file's header: tensor directory, scalar metadata, vocabulary. Owns parsing through the `gguf` package.

Used when a model folder is made, never at engine start: the package reads every token and merge, which takes seconds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from contracts.errors import SetupError
from contracts.model_folder import TensorDirectory, TensorEntry


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer as GGUF stores it; token_types 3 is a control token, merges are "left right" in order of rank."""

    model: str
    pre_tokenizer: str
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    merges: tuple[str, ...]
    chat_template: str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All that the model folder needs of a GGUF file besides its tensors' bytes.

    rope_sections: frequencies by axis of multi-axis RoPE, empty where the file has none.
    """

    architecture: str
    metadata: dict[str, int | float | str | bool]
    tensors: tuple[TensorEntry, ...]
    vocabulary: Vocabulary
    rope_sections: tuple[int, ...] = ()

    def to_directory(self, weights_bytes: int, weights_sha256: str) -> TensorDirectory:
        """The tensor directory of the file with that size and digest; text templates stay out of its metadata."""
        metadata = {key: value for key, value in self.metadata.items() if not key.startswith("tokenizer.")}
        return TensorDirectory(weights_bytes, weights_sha256, self.architecture, metadata, list(self.tensors))


def read_header(path: Path) -> GgufHeader:
    """Parse the header of a little-endian GGUF file.

    Raises: SetupError when the file is no GGUF or lacks architecture, vocabulary or chat template.
    """
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise SetupError(f"{path} is not a readable GGUF file: {error}") from error
    metadata: dict[str, int | float | str | bool] = {}
    for key, field in reader.fields.items():
        value = field.contents() if len(field.types) == 1 else None
        if isinstance(value, int | float | str | bool):
            metadata[key] = value
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise SetupError(f"{path} names no architecture")
    sections = reader.fields.get(f"{architecture}.rope.dimension_sections")
    rope_sections = () if sections is None else tuple(int(count) for count in sections.contents())
    return GgufHeader(architecture, metadata, _tensors(reader), _vocabulary(reader, path), rope_sections)


def _tensors(reader: GGUFReader) -> tuple[TensorEntry, ...]:
    return tuple(
        TensorEntry(
            name=str(tensor.name),
            kind=str(tensor.tensor_type.name),
            shape=[int(axis) for axis in reversed(tensor.shape)],  # GGUF lists the contiguous axis first
            offset=int(tensor.data_offset),
            bytes=int(tensor.n_bytes),
        )
        for tensor in reader.tensors
    )


def _vocabulary(reader: GGUFReader, path: Path) -> Vocabulary:
    def contents(key: str) -> Any:
        field = reader.fields.get(key)
        if field is None:
            raise SetupError(f"{path} has no {key}")
        return field.contents()

    return Vocabulary(
        model=contents("tokenizer.ggml.model"),
        pre_tokenizer=contents("tokenizer.ggml.pre"),
        tokens=tuple(contents("tokenizer.ggml.tokens")),
        token_types=tuple(contents("tokenizer.ggml.token_type")),
        merges=tuple(contents("tokenizer.ggml.merges")),
        chat_template=contents("tokenizer.chat_template"),
    )
