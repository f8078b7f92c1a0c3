"""How codes of a linear layer lie in words: arithmetic and packing on the host. Owns bit positions; knows no scale, no
file, no torch, so that planning and converting need none. The layout itself is the contract in `ops/linear`.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Bits = Literal[4, 5, 6, 8]
LAYOUT_VERSION = 1
WORD_BITS = 32
PLANE_ELEMENTS = 64
LOW_BITS = 4


def num_fields(bits: Bits) -> int:
    """Codes that one word holds a field of: the whole code of 4 and 8 bits, the low four bits of 5 and 6."""
    return WORD_BITS // (8 if bits == 8 else LOW_BITS)


def num_words(num_cols: int, bits: Bits) -> int:
    """int32 words of one packed row of num_cols elements; num_cols must be a multiple of the fields of a word."""
    assert num_cols % num_fields(bits) == 0, f"{num_cols} columns of {bits} bits do not fill whole words"
    return num_cols // num_fields(bits)


def num_groups(num_cols: int, group_size: int) -> int:
    """Groups of one row; the last one may be short."""
    return -(-num_cols // group_size)


def num_high_bits(bits: Bits) -> int:
    """Bits of a code that do not fit its word: 1 of 5, 2 of 6, else none."""
    return bits - LOW_BITS if bits in (5, 6) else 0


def pack_codes(codes: NDArray[np.uint8], bits: Bits) -> NDArray[np.int32]:
    """Pack one code per byte into words; of 5 and 6 bits the low four.

    In NumPy on the calling thread: a parallel copy of small chunks gains nothing and waits at every barrier.
    Shapes:  codes [N, K] uint8, values below 2^bits; returns [N, num_words(K, bits)] int32.
    """
    num_rows, num_cols = codes.shape
    words = np.empty((num_rows, num_words(num_cols, bits)), dtype="<i4")
    packed = words.view(np.uint8)  # [N, 4 * words]
    fields = num_fields(bits)
    for start, num_blocks, width in spans(num_cols, bits):
        end = start + num_blocks * fields * width
        block = codes[:, start:end].reshape(num_rows, num_blocks, fields, width)
        planes = block if bits == 8 else _join_nibbles(block, bits)
        target = packed[:, start * 4 // fields : end * 4 // fields].reshape(num_rows, num_blocks, width, 4)
        for byte in range(4):
            target[:, :, :, byte] = planes[:, :, byte]  # planes [N, blocks, 4, width]
    return words


def pack_high_bits(codes: NDArray[np.uint8], bits: Bits) -> NDArray[np.uint8] | NDArray[np.int16]:
    """The bits above the low four, one lane per word.

    Shapes:  codes [N, K] uint8 of 5 or 6 bits; returns [N, K / 8] uint8 (5 bits) or int16 (6 bits).
    """
    num_rows, num_cols = codes.shape
    num_bits, fields = num_high_bits(bits), num_fields(bits)
    assert num_bits > 0, f"codes of {bits} bits have no high bits"
    lanes = np.zeros((num_rows, num_words(num_cols, bits)), dtype=np.uint8 if num_bits == 1 else np.uint16)
    for start, num_blocks, width in spans(num_cols, bits):
        end = start + num_blocks * fields * width
        block = (codes[:, start:end] >> LOW_BITS).reshape(num_rows, num_blocks, fields, width).astype(lanes.dtype)
        target = lanes[:, start // fields : end // fields].reshape(num_rows, num_blocks, width)
        for field in range(fields):
            target |= np.left_shift(block[:, :, field], field * num_bits)
    return lanes if num_bits == 1 else lanes.view(np.int16)


def spans(num_cols: int, bits: Bits) -> list[tuple[int, int, int]]:
    """(first element, superblocks, words each): the whole superblocks, then the tail; empty ones left out."""
    fields = num_fields(bits)
    num_blocks, tail = divmod(num_cols, PLANE_ELEMENTS * fields)
    whole = [(0, num_blocks, PLANE_ELEMENTS)] if num_blocks else []
    return whole + ([(num_cols - tail, 1, tail // fields)] if tail else [])


def _join_nibbles(block: NDArray[np.uint8], bits: Bits) -> NDArray[np.uint8]:
    """[N, blocks, 8, width] codes to [N, blocks, 4, width] bytes; a shift by four drops what is above the low four."""
    even = block[:, :, 0::2] if bits == LOW_BITS else np.bitwise_and(block[:, :, 0::2], 15)
    return np.bitwise_or(even, np.left_shift(block[:, :, 1::2], LOW_BITS))
