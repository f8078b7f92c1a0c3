"""A folder in the public checkpoint layout as a TensorSource. Owns names: prefixes, companions of a matrix, vision.

Both forms of the family are read: with a vision tower beside it ("model.language_model.") and text only ("model.").
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.hf_config import HfConfig, Method
from engine.spec import ModelSpec, describe_differences
from engine.weights.readers.fp8 import Fp8BlockReader
from engine.weights.readers.int4 import AwqReader, GptqReader, PackQuantizedReader
from engine.weights.readers.plain import PlainReader
from engine.weights.readers.row_reader import RowReader, StoredArray
from engine.weights.safetensors import SafetensorsFolder
from engine.weights.tensor_source import CodeRows, FloatRows, StoredTensor

_VISION = ("model.visual.", "visual.")
_TOP = ("lm_head.", "mtp.")
_NESTED, _FLAT = "model.language_model.", "model."
# Suffixes of the tensors that stand for a matrix together, by the method that writes them.
_COMPANIONS: Final[Mapping[Method, tuple[str, ...]]] = {
    "fp8": ("weight", "weight_scale_inv"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "gptq_v2": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
    "pack-quantized": ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
}
# What a spec cannot be told from, or what a name decides.
_NOT_COMPARED = frozenset({"name", "default_kv_format", "dead_token_rows"})


class HfSource:
    """See TensorSource."""

    def __init__(self, config: HfConfig, folder: SafetensorsFolder) -> None:
        """Raises: SetupError naming a tensor whose dtype or shape does not go with its companions."""
        self.path: Final[Path] = folder.path
        self._config = config
        self._folder = folder
        nested = any(name.startswith(_NESTED) for name in folder.ranges)
        self._prefix = _NESTED if nested else _FLAT
        self._readers: dict[str, RowReader] = {}
        self.tensors: Final[dict[str, StoredTensor]] = {}
        self.unknown: Final[Sequence[str]] = self._read_names()

    def spell(self, name: str) -> str:
        """See TensorSource."""
        return name if name.startswith(_TOP) else self._prefix + name

    def check_spec(self, spec: ModelSpec) -> None:
        """Compare config.json with the spec."""
        differences = describe_differences(spec, self._config.spec, ignore=_NOT_COMPARED)
        if differences:
            raise SetupError(f"{self.path} is not {spec.name}: {differences}")

    def read_vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        return self._readers[name].read(0, self.tensors[name].shape[0]).values

    def read_floats(self, name: str, start: int, stop: int) -> FloatRows:
        """See TensorSource."""
        return self._readers[name].read(start, stop)

    def read_codes(self, name: str, start: int, stop: int) -> CodeRows:
        """No kind of this layout has our groups' codes."""
        raise AssertionError(f"{name} [{start}, {stop}) is not packed")

    def release(self) -> None:
        """See TensorSource."""
        self._folder.release()

    def _read_names(self) -> list[str]:
        """Make a reader of every tensor or group of companions; returns the names that no rule knows."""
        unknown: list[str] = []
        grouped: dict[str, dict[str, StoredArray]] = {}
        companions = () if self._config.quantization is None else _COMPANIONS[self._config.quantization]
        for name in self._folder.ranges:
            if name.startswith(_VISION):
                continue
            canonical = self._canonical(name)
            module, _, suffix = (canonical or "").rpartition(".")
            if canonical is None:
                unknown.append(name)
            elif suffix in companions:
                grouped.setdefault(module, {})[suffix] = self._array(name)
            else:
                self._add(canonical, [name], self._reader(module, {suffix: self._array(name)}))
        for module, parts in grouped.items():
            names = [part.name for part in parts.values()]
            self._add(f"{module}.weight", names, self._reader(module, parts))
        return unknown

    def _canonical(self, name: str) -> str | None:
        if name.startswith(_TOP):
            return name
        return name.removeprefix(self._prefix) if name.startswith(self._prefix) else None

    def _array(self, name: str) -> StoredArray:
        found = self._folder.ranges[name]
        return StoredArray(name, found.dtype, found.shape, self._folder.raw(name))

    def _reader(self, module: str, parts: Mapping[str, StoredArray]) -> RowReader:
        """The reader of one tensor, or of a group of companions."""
        try:
            return _make_reader(self.spell(module), parts, self._config.quantization)
        except SetupError as error:
            raise SetupError(f"{self.path}: {error.message}") from error

    def _add(self, canonical: str, names: Sequence[str], reader: RowReader) -> None:
        num_bytes = sum(self._folder.ranges[name].num_bytes for name in names)
        self._readers[canonical] = reader
        self.tensors[canonical] = StoredTensor(names[0], reader.shape, reader.kind, num_bytes, reader.precision)


def _make_reader(module: str, parts: Mapping[str, StoredArray], method: Method | None) -> RowReader:
    companions = () if method is None else _COMPANIONS[method]
    first = next(iter(parts.values()))
    if len(parts) == 1 and (first.name.endswith(".weight") or not set(parts) & set(companions)):
        return PlainReader(first, _squeezed(first.shape))
    match method:
        case "fp8" if "weight" in parts:
            return Fp8BlockReader(parts["weight"], parts["weight_scale_inv"])
        case "gptq" | "gptq_v2":
            return GptqReader(module, parts, method)
        case "awq":
            return AwqReader(module, parts)
        case "pack-quantized":
            return PackQuantizedReader(module, parts)
    raise SetupError(f"tensor {module}.weight is missing beside {first.name}")


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without the middle axis of a depthwise convolution's [C, 1, taps]."""
    return (shape[0], shape[2]) if len(shape) == 3 and shape[1] == 1 else shape
