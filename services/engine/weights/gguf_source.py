"""A GGUF file as a TensorSource: canonical names, arrangement undone. Owns the translation; `gguf_file` maps the file.

Kinds that the engine reads at start are decoded here; `decode` may be given for files with more kinds (conversion).
"""

from collections.abc import Callable, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.spec import ModelSpec
from engine.weights.blocks import decode_codes, decode_floats
from engine.weights.forms import DenseDType, PackedForm
from engine.weights.gguf_dialect import Arrangement, choose_dialect, require_architecture
from engine.weights.gguf_file import GgufFile, StorageKind
from engine.weights.tensor_source import CodeRows, FloatRows, StoredTensor

RowDecoder = Callable[[NDArray[np.uint8], StorageKind], NDArray[np.float32]]
_FLOAT32_TOLERANCE = 1e-6  # metadata holds float32, the spec holds what was meant


def decode_native(raw: NDArray[np.uint8], kind: StorageKind) -> NDArray[np.float32]:
    """Rows or a vector of the kinds in gguf_file.STORAGE_KINDS as fp32."""
    if kind.bits is None:
        return decode_floats(raw, kind)
    rows = decode_codes(raw, kind)
    num_rows, num_groups = rows.scales.shape
    values = rows.codes.astype(np.float32).reshape(num_rows, num_groups, kind.block_elements)
    if rows.minima is None:
        values -= np.float32(1 << (kind.bits - 1))
    values *= rows.scales.astype(np.float32)[:, :, np.newaxis]
    if rows.minima is not None:
        values += rows.minima.astype(np.float32)[:, :, np.newaxis]
    return values.reshape(num_rows, -1)


class GgufSource:
    """See TensorSource."""

    def __init__(self, spec: ModelSpec, file: GgufFile, decode: RowDecoder = decode_native) -> None:
        """Raises: SetupError when the file is of another architecture than the spec's family."""
        require_architecture(file.path, file.directory.architecture, spec)
        self.path: Final[Path] = file.path
        self._file = file
        self._decode = decode
        self._dialect = choose_dialect(spec)
        names = self._dialect.names
        self._spelling = {canonical: stored for stored, canonical in names.items()}
        self.unknown: Final[Sequence[str]] = [name for name in file.entries if name not in names]
        self.tensors: Final[Mapping[str, StoredTensor]] = {
            names[stored]: self._describe(stored, names[stored]) for stored in file.entries if stored in names
        }

    def spell(self, name: str) -> str:
        """See TensorSource."""
        return self._spelling[name]

    def check_spec(self, spec: ModelSpec) -> None:
        """Compare the file's metadata with the spec."""
        metadata, architecture = self._file.directory.metadata, self._file.directory.architecture
        for key, expected in _expected_metadata(spec).items():
            value = metadata.get(f"{architecture}.{key}")
            if not isinstance(value, int | float) or not isclose(value, expected, rel_tol=_FLOAT32_TOLERANCE):
                raise SetupError(f"{self.path}: metadata {key} is {value!r}, {spec.name} has {expected!r}")

    def read_vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        stored = self.tensors[name]
        values = self._numbers(self._raw(name), name).reshape(stored.shape)
        arrangement = self._dialect.arrangement(name)
        if arrangement.row_order is not None:
            values = values[arrangement.row_order]
        return values if arrangement.restore is None else arrangement.restore(values)

    def read_floats(self, name: str, start: int, stop: int) -> FloatRows:
        """See TensorSource."""
        arrangement = self._dialect.arrangement(name)
        assert arrangement.restore is None, f"{name} is no matrix"
        values = self._numbers(self._rows(name, start, stop, arrangement), name)
        if arrangement.column_order is not None:
            values = values[:, arrangement.column_order]
        return FloatRows(values)

    def read_codes(self, name: str, start: int, stop: int) -> CodeRows:
        """See TensorSource."""
        raw = self._rows(name, start, stop, self._dialect.arrangement(name))
        return decode_codes(raw, self._kind(name))

    def release(self) -> None:
        """See TensorSource."""
        self._file.release()

    def _describe(self, stored: str, name: str) -> StoredTensor:
        entry, kind = self._file.entries[stored], self._file.kind(stored)
        packed = None
        if kind.bits is not None and self._dialect.arrangement(name).keeps_codes:
            packed = PackedForm(kind.bits, kind.block_elements, kind.has_minimum)
        precision: DenseDType | None = None
        if kind.block_elements == 1:
            precision = "bf16" if kind.name == "BF16" else "fp32"
        return StoredTensor(stored, tuple(entry.shape), kind.name, entry.bytes, precision, packed)

    def _kind(self, name: str) -> StorageKind:
        return self._file.kind(self.tensors[name].spelling)

    def _raw(self, name: str) -> NDArray[np.uint8]:
        return self._file.raw(self.tensors[name].spelling)

    def _rows(self, name: str, start: int, stop: int, arrangement: Arrangement) -> NDArray[np.uint8]:
        """Bytes of rows in the engine's order."""
        raw, order = self._raw(name), arrangement.row_order
        return raw[start:stop] if order is None else raw[order[start:stop]]

    def _numbers(self, raw: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
        return self._decode(raw, self._kind(name))


def _expected_metadata(spec: ModelSpec) -> dict[str, float]:
    """What the file must say of itself; shapes say the rest."""
    dims = spec.attention
    expected: dict[str, float] = {
        "block_count": spec.num_layers + spec.mtp_layers,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": dims.num_heads,
        "attention.head_count_kv": dims.num_kv_heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.freq_base": dims.rope_theta,
        "rope.dimension_count": dims.rotary_dims,
        "context_length": spec.context_limit,
    }
    if spec.delta is not None:
        delta = spec.delta
        expected |= {
            "attention.key_length": dims.head_dim,
            "attention.value_length": dims.head_dim,
            "ssm.conv_kernel": delta.conv_width,
            "ssm.state_size": delta.key_dim,
            "ssm.group_count": delta.num_key_heads,
            "ssm.time_step_rank": delta.num_value_heads,
            "ssm.inner_size": delta.num_value_heads * delta.value_dim,
        }
    return expected
