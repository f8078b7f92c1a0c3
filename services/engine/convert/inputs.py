"""What is converted: a folder in the public checkpoint layout, or a GGUF file. Owns opening it, reads no tensor."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import SetupError
from engine.convert.gguf_input import open_gguf
from engine.convert.text_files import TextFiles, read_text_files
from engine.hf_config import CONFIG_NAME, read_config
from engine.spec import ModelSpec
from engine.weights.hf_source import HfSource
from engine.weights.safetensors import SafetensorsFolder
from engine.weights.tensor_source import TensorSource


@dataclass(frozen=True, slots=True, eq=False)
class ConversionInput:
    """An opened checkpoint. identity changes when the source does; description goes into the artifact."""

    spec: ModelSpec
    source: TensorSource
    text: TextFiles
    description: str
    identity: str


def open_input(path: Path, name: str) -> ConversionInput:
    """Open a checkpoint as a model of the name; headers are read, no tensor is.

    Raises: SetupError saying what the path lacks or why it is not supported.
    """
    if path.is_file() and path.suffix == ".gguf":
        opened = open_gguf(path, name)
        status = path.stat()
        identity = _digest([str(status.st_size), str(status.st_mtime_ns), repr(opened.source.tensors)])
        return ConversionInput(opened.spec, opened.source, opened.text, f"gguf {path.name}", identity)
    if not path.is_dir():
        raise SetupError(f"{path} is neither a folder with a checkpoint nor a .gguf file")
    if not (path / CONFIG_NAME).exists():
        raise SetupError(f"{path} has no {CONFIG_NAME}: expected a checkpoint's folder or a .gguf file")
    config = read_config(path, name)
    folder = SafetensorsFolder(path)
    text = read_text_files(path)
    identity = _digest([repr(shard) for shard in folder.identity] + [(path / CONFIG_NAME).read_text(encoding="utf-8")])
    kind = config.quantization or "numbers"
    return ConversionInput(config.spec, HfSource(config, folder), text, f"safetensors {path.name}, {kind}", identity)


def _digest(parts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()
