"""Stored blocks to codes and scales, and stored floats to fp32. Owns the bit layout of each storage kind on disk.

Formula: Q4_0 = (q - 8) d; Q4_1 = q d + m; Q8_0 = q d with signed q, here q + 128 so that codes are unsigned.
         A block of 32: d fp16, [m fp16], then 16 bytes (byte j: element j low, element j + 16 high) or 32 bytes.
Source:  the GGUF format's published block structures; the `gguf` package is the oracle in the tests.
"""

import numpy as np
from numpy.typing import NDArray

from engine.weights.gguf_file import StorageKind
from engine.weights.tensor_source import CodeRows


def decode_codes(raw: NDArray[np.uint8], kind: StorageKind) -> CodeRows:
    """Split quantised rows.

    Shapes:  raw [N, bytes of a row] uint8 of a kind with bits.
    """
    num_rows = raw.shape[0]
    blocks = raw.reshape(num_rows, -1, kind.block_bytes)  # [N, K / 32, bytes]
    num_blocks = blocks.shape[1]
    scales = _half(blocks, 0)
    minima = _half(blocks, 2) if kind.has_minimum else None
    payload = blocks[:, :, 4 if kind.has_minimum else 2 :]
    if kind.bits == 4:
        codes = np.empty((num_rows, num_blocks, 2, 16), dtype=np.uint8)
        np.bitwise_and(payload, 15, out=codes[:, :, 0])
        np.right_shift(payload, 4, out=codes[:, :, 1])
    else:
        codes = np.bitwise_xor(payload, 128)
    return CodeRows(codes.reshape(num_rows, -1), scales, minima)


def decode_floats(raw: NDArray[np.uint8], kind: StorageKind) -> NDArray[np.float32]:
    """Floating-point bytes, F32, F16 or BF16, as fp32 of raw's leading shape; a copy."""
    assert kind.block_elements == 1, f"{kind.name} holds blocks"
    match kind.name:
        case "F32":
            return raw.view(np.float32).copy()
        case "BF16":
            return widen_bf16(raw.view(np.uint16))
    return raw.view(np.float16).astype(np.float32)


def widen_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bf16, given as its bits, as fp32: exact."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def _half(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float16]:
    halves = np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view(np.float16)  # [N, K / 32, 1]
    return halves[:, :, 0]
