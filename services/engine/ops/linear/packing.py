"""Plane packing of codes into words and back (see the contract). Owns bit positions; knows no scale and no file.

Packing happens on the host when weights are loaded or converted, in NumPy on the calling thread: a parallel copy of
small chunks gains nothing, and waits for other processes at every barrier. Unpacking follows the words' device.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.ops.linear.matrix import PLANE_ELEMENTS, WORD_BITS, Bits, num_words


def pack_codes(codes: NDArray[np.uint8], bits: Bits) -> NDArray[np.int32]:
    """Pack one code per byte into words.

    Shapes:  codes [N, K] uint8, values below 2^bits; returns [N, K * bits / 32] int32.
    """
    num_rows, num_cols = codes.shape
    words = np.empty((num_rows, num_words(num_cols, bits)), dtype="<i4")
    packed = words.view(np.uint8)  # [N, K * bits / 8]
    num_fields = WORD_BITS // bits
    for start, num_blocks, width in _spans(num_cols, bits):
        end = start + num_blocks * num_fields * width
        fields = codes[:, start:end].reshape(num_rows, num_blocks, num_fields, width)
        planes = fields if bits == 8 else np.bitwise_or(fields[:, :, 0::2], np.left_shift(fields[:, :, 1::2], 4))
        target = packed[:, start * bits // 8 : end * bits // 8].reshape(num_rows, num_blocks, width, 4)
        for byte in range(4):
            target[:, :, :, byte] = planes[:, :, byte]  # planes [N, blocks, 4, width]
    return words


def unpack_codes(words: torch.Tensor, num_cols: int, bits: Bits) -> torch.Tensor:
    """The inverse of pack_codes.

    Shapes:  words [N, num_cols * bits / 32] int32, contiguous; returns [N, num_cols] uint8.
    """
    num_rows = words.shape[0]
    assert words.shape[1] == num_words(num_cols, bits)
    packed = words.view(torch.uint8)  # [N, K * bits / 8]
    codes = torch.empty(num_rows, num_cols, dtype=torch.uint8, device=words.device)
    for start, num_blocks, width in _spans(num_cols, bits):
        num_fields = WORD_BITS // bits
        end = start + num_blocks * num_fields * width
        source = packed[:, start * bits // 8 : end * bits // 8].view(num_rows, num_blocks, width, 4).transpose(2, 3)
        planes = codes[:, start:end].view(num_rows, num_blocks, num_fields, width)
        if bits == 4:
            planes[:, :, 0::2] = source & 15
            planes[:, :, 1::2] = source >> 4
        else:
            planes.copy_(source)
    return codes


def _spans(num_cols: int, bits: Bits) -> list[tuple[int, int, int]]:
    """(first element, superblocks, words each): the whole superblocks, then the tail; empty ones left out."""
    fields = WORD_BITS // bits
    num_blocks, tail = divmod(num_cols, PLANE_ELEMENTS * fields)
    spans = [(0, num_blocks, PLANE_ELEMENTS)] if num_blocks else []
    if tail:
        spans.append((num_cols - tail, 1, tail // fields))
    return spans
