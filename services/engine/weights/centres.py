"""The optional part of a model folder that centres the KV cache: mean keys and values per KV head. Owns the file.

Filled by a calibration, after the conversion; a folder without it has zeros, which are valid. Layers are the attention
layers in the order of the schedule, then the MTP layer. Keys are means after RoPE. The file is a safetensors file with
`keys` and `values`, and the format's version in its metadata.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from contracts import codec
from contracts.errors import SetupError
from contracts.model_folder import CENTRES_NAME, MANIFEST_NAME, FileEntry
from engine.durable import sync_folder, write_durably
from engine.model_home import ModelFolder, file_sha256
from engine.spec import ModelSpec
from engine.weights.safetensors import read_file

CENTRES_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class KvCentres:
    """What is subtracted from every key and value before it is stored.

    Shapes:  keys, values [L, Hkv, D] fp32; L as centre_shape says.
    """

    keys: NDArray[np.float32]
    values: NDArray[np.float32]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the numbers: part of the KV format's identity, because stored keys depend on them."""
        return hashlib.sha256(_bytes(self.keys) + _bytes(self.values)).hexdigest()


def centre_shape(spec: ModelSpec) -> tuple[int, int, int]:
    """(layers that keep keys and values, KV heads, head dim)."""
    dims = spec.attention
    return (spec.num_attention_layers + spec.mtp_layers, dims.num_kv_heads, dims.head_dim)


def read_centres(folder: ModelFolder, spec: ModelSpec) -> KvCentres:
    """The folder's centres, zeros where it was not calibrated.

    Raises: SetupError when the file is damaged, of another version, or does not fit the spec.
    """
    shape = centre_shape(spec)
    if CENTRES_NAME not in folder.manifest.files:
        return KvCentres(np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32))
    path = folder.path / CENTRES_NAME
    tensors, content = read_file(path)
    version = _version(content)
    if version != CENTRES_VERSION:
        raise SetupError(
            f"{path} has format {version}, this version reads {CENTRES_VERSION}; calibrate the model again"
        )
    found = {name: (entry.dtype, entry.shape) for name, entry in tensors.items()}
    if found != dict.fromkeys(("keys", "values"), ("F32", shape)):
        raise SetupError(f"{path} holds {found}, expected keys and values of {list(shape)} F32")
    keys, values = (
        content[tensors[name].offset :][: tensors[name].num_bytes].view(np.float32).reshape(shape).copy()
        for name in ("keys", "values")
    )
    if not (np.isfinite(keys).all() and np.isfinite(values).all()):
        raise SetupError(f"{path} has values that are not finite")
    return KvCentres(keys, values)


def write_centres(folder: ModelFolder, spec: ModelSpec, centres: KvCentres) -> ModelFolder:
    """Put centres into a model folder, or replace those it has; the manifest changes last.

    Raises: OSError. Effects: a reader in between sees a file that its manifest does not describe, and refuses it.
    """
    for array in (centres.keys, centres.values):
        assert array.shape == centre_shape(spec) and array.dtype == np.float32, f"{array.shape} {array.dtype}"
    _replace(folder.path / CENTRES_NAME, _encode(centres))
    entry = FileEntry(bytes=(folder.path / CENTRES_NAME).stat().st_size, sha256=file_sha256(folder.path / CENTRES_NAME))
    manifest = msgspec.structs.replace(folder.manifest, files=folder.manifest.files | {CENTRES_NAME: entry})
    _replace(folder.path / MANIFEST_NAME, codec.encode(manifest))
    sync_folder(folder.path)
    return ModelFolder(folder.path, manifest)


class _Metadata(msgspec.Struct):
    format_version: str = ""


class _Header(msgspec.Struct):
    metadata: _Metadata = msgspec.field(name="__metadata__", default_factory=_Metadata)


def _version(content: NDArray[np.uint8]) -> int:
    length = int.from_bytes(content[:8].tobytes(), "little")
    text = msgspec.json.decode(content[8 : 8 + length].tobytes(), type=_Header).metadata.format_version
    return int(text) if text.isdigit() else 0


def _encode(centres: KvCentres) -> bytes:
    keys, values = _bytes(centres.keys), _bytes(centres.values)
    shape = list(centres.keys.shape)
    header = {
        "__metadata__": {"format_version": str(CENTRES_VERSION)},
        "keys": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(keys)]},
        "values": {"dtype": "F32", "shape": shape, "data_offsets": [len(keys), len(keys) + len(values)]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + keys + values


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.new")
    write_durably(beside, content)
    beside.replace(path)


def _bytes(array: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(array, dtype="<f4").tobytes()
