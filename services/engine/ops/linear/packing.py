"""Plane packing of codes into words and back (see the contract). Owns bit positions; knows no scale and no file."""

import torch

from engine.ops.linear.matrix import PLANE_ELEMENTS, WORD_BITS, Bits, num_words


def pack_codes(codes: torch.Tensor, bits: Bits, out: torch.Tensor | None = None) -> torch.Tensor:
    """Pack one code per byte into words.

    Shapes:  codes [N, K] uint8, values below 2^bits; returns [N, K * bits / 32] int32.
    Effects: writes into out and returns it when given (contiguous, of the returned shape).
    """
    num_rows, num_cols = codes.shape
    if out is None:
        out = torch.empty(num_rows, num_words(num_cols, bits), dtype=torch.int32, device=codes.device)
    packed = out.view(torch.uint8)  # [N, K * bits / 8]
    for start, num_blocks, width in _spans(num_cols, bits):
        num_fields = WORD_BITS // bits
        end = start + num_blocks * num_fields * width
        planes = codes[:, start:end].view(num_rows, num_blocks, num_fields, width)
        if bits == 4:
            planes = planes[:, :, 0::2] | (planes[:, :, 1::2] << 4)  # [N, blocks, 4, width]
        target = packed[:, start * bits // 8 : end * bits // 8].view(num_rows, num_blocks, width, 4)
        target.copy_(planes.transpose(2, 3))
    return out


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
