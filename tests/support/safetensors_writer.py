"""Writes safetensors files by the format's definition, and packs matrices the way public quantised checkpoints do.

Independent of the engine's readers: every word is put together one field at a time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Stored = tuple[str, tuple[int, ...], bytes]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def stored(dtype: str, values: NDArray[np.generic]) -> Stored:
    """A tensor of the dtype; bf16 is given as fp32 and rounded to nearest even."""
    if dtype == "BF16":
        return dtype, values.shape, to_bf16(values.astype(np.float32)).tobytes()
    kinds = {"F32": "<f4", "F16": "<f2", "I32": "<u4", "I64": "<i8", "F8_E4M3": "u1"}
    return dtype, values.shape, np.ascontiguousarray(values).astype(kinds[dtype]).tobytes()


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """bf16 bits, one at a time through exact comparison of the two neighbours."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    low = bits & 0xFFFF
    up = (low > 0x8000) | ((low == 0x8000) & ((bits >> 16) & 1 == 1))
    return ((bits >> 16) + up).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_file(path: Path, tensors: Mapping[str, Stored]) -> None:
    """One file, tensors back to back in the order given."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, content in tensors.values():
            file.write(content)


def write_shards(folder: Path, tensors: Mapping[str, Stored], num_shards: int) -> None:
    """Shards and their index."""
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::num_shards]}
        write_file(folder / file_name, part)
        weight_map |= dict.fromkeys(part, file_name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@dataclass(frozen=True, slots=True, eq=False)
class Int4:
    """A random int4 matrix: codes 0..15 [N, K], zeros [N, G], scales [N, G], group of each column [K]."""

    codes: NDArray[np.int64]
    zeros: NDArray[np.int64]
    scales: NDArray[np.float32]
    groups: NDArray[np.int64]

    @property
    def values(self) -> NDArray[np.float32]:
        """scale * (code - zero), one rounding."""
        difference = self.codes - self.zeros[:, self.groups]
        return (self.scales.astype(np.float64)[:, self.groups] * difference).astype(np.float32)


def random_int4(
    num_rows: int, num_cols: int, group: int, *, symmetric: bool, seed: int, shuffled: bool = False
) -> Int4:
    rng = np.random.default_rng(seed)
    num_groups = num_cols // group
    zeros = np.full((num_rows, num_groups), 8) if symmetric else rng.integers(1, 16, (num_rows, num_groups))
    groups = np.arange(num_cols) // group
    return Int4(
        codes=rng.integers(0, 16, (num_rows, num_cols)),
        zeros=zeros.astype(np.int64),
        scales=from_bf16(to_bf16(rng.uniform(0.001, 0.1, (num_rows, num_groups)).astype(np.float32))),
        groups=rng.permutation(groups) if shuffled else groups,
    )


def gptq(matrix: Int4, *, v2: bool = False, with_index: bool = True) -> dict[str, Stored]:
    """qweight packs eight columns of a row index into a word down the rows of [K / 8, N]."""
    num_rows, num_cols = matrix.codes.shape
    num_groups = matrix.zeros.shape[1]
    qweight = np.zeros((num_cols // 8, num_rows), dtype=np.uint32)
    for k in range(num_cols):
        for n in range(num_rows):
            qweight[k // 8, n] |= np.uint32(int(matrix.codes[n, k]) << (4 * (k % 8)))
    qzeros = np.zeros((num_groups, num_rows // 8), dtype=np.uint32)
    for g in range(num_groups):
        for n in range(num_rows):
            qzeros[g, n // 8] |= np.uint32((int(matrix.zeros[n, g]) - (0 if v2 else 1)) << (4 * (n % 8)))
    parts = {"qweight": stored("I32", qweight), "qzeros": stored("I32", qzeros)}
    parts["scales"] = stored("F16", matrix.scales.T)
    if with_index:
        parts["g_idx"] = stored("I32", matrix.groups)
    return parts


def awq(matrix: Int4) -> dict[str, Stored]:
    """qweight [K, N / 8]; the i-th nibble of a word belongs to row AWQ_ORDER[i] of its eight."""
    num_rows, num_cols = matrix.codes.shape
    num_groups = matrix.zeros.shape[1]
    qweight = np.zeros((num_cols, num_rows // 8), dtype=np.uint32)
    qzeros = np.zeros((num_groups, num_rows // 8), dtype=np.uint32)
    for word in range(num_rows // 8):
        for nibble in range(8):
            row = 8 * word + AWQ_ORDER[nibble]
            for k in range(num_cols):
                qweight[k, word] |= np.uint32(int(matrix.codes[row, k]) << (4 * nibble))
            for g in range(num_groups):
                qzeros[g, word] |= np.uint32(int(matrix.zeros[row, g]) << (4 * nibble))
    return {
        "qweight": stored("I32", qweight),
        "qzeros": stored("I32", qzeros),
        "scales": stored("F16", matrix.scales.T),
    }


def pack_quantized(matrix: Int4, *, symmetric: bool, with_index: bool = False) -> dict[str, Stored]:
    """weight_packed [N, ceil(K / 8)]; zero points are packed down the rows."""
    num_rows, num_cols = matrix.codes.shape
    num_groups = matrix.zeros.shape[1]
    packed = np.zeros((num_rows, -(-num_cols // 8)), dtype=np.uint32)
    for n in range(num_rows):
        for k in range(num_cols):
            packed[n, k // 8] |= np.uint32(int(matrix.codes[n, k]) << (4 * (k % 8)))
    parts = {
        "weight_packed": stored("I32", packed),
        "weight_scale": stored("BF16", matrix.scales),
        "weight_shape": stored("I64", np.array([num_rows, num_cols])),
    }
    if not symmetric:
        zeros = np.zeros((-(-num_rows // 8), num_groups), dtype=np.uint32)
        for n in range(num_rows):
            for g in range(num_groups):
                zeros[n // 8, g] |= np.uint32(int(matrix.zeros[n, g]) << (4 * (n % 8)))
        parts["weight_zero_point"] = stored("I32", zeros)
    if with_index:
        parts["weight_g_idx"] = stored("I32", matrix.groups)
    return parts
