"""Words back to codes, on the words' device (see the contract). Owns the inverse of packing, no scale, no file."""

import torch

from engine.ops.linear_layout import LOW_BITS, Bits, num_fields, num_high_bits, num_words, spans


def unpack_codes(words: torch.Tensor, num_cols: int, bits: Bits, high: torch.Tensor | None = None) -> torch.Tensor:
    """The inverse of pack_codes and, for 5 and 6 bits, pack_high_bits.

    Shapes:  words [N, num_words] int32, contiguous; high [N, num_words] uint8 or int16, None for 4 and 8 bits; returns
             [N, num_cols] uint8.
    """
    num_rows = words.shape[0]
    assert words.shape[1] == num_words(num_cols, bits)
    packed = words.view(torch.uint8)  # [N, 4 * words]
    codes = torch.empty(num_rows, num_cols, dtype=torch.uint8, device=words.device)
    fields = num_fields(bits)
    for start, num_blocks, width in spans(num_cols, bits):
        end = start + num_blocks * fields * width
        source = packed[:, start * 4 // fields : end * 4 // fields].view(num_rows, num_blocks, width, 4).transpose(2, 3)
        planes = codes[:, start:end].view(num_rows, num_blocks, fields, width)
        if bits == 8:
            planes.copy_(source)
            continue
        planes[:, :, 0::2] = source & 15
        planes[:, :, 1::2] = source >> LOW_BITS
        if high is not None:
            _add_high_bits(planes, high[:, start // fields : end // fields], num_high_bits(bits))
    return codes


def _add_high_bits(planes: torch.Tensor, lanes: torch.Tensor, num_bits: int) -> None:
    """planes [N, blocks, 8, width] uint8 hold the low four bits; lanes [N, blocks * width]."""
    num_rows, num_blocks, fields, width = planes.shape
    wide = lanes.reshape(num_rows, num_blocks, width).to(torch.int32)
    for field in range(fields):
        above = (wide >> (field * num_bits)) & ((1 << num_bits) - 1)
        planes[:, :, field] |= (above << LOW_BITS).to(torch.uint8)
