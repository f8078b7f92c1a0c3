"""fp32 torch reference of the KV codec: rotation, encoders, decoders. Owns the arithmetic every kernel must reproduce.

Receives keys and values of one layer, hands on Encoded codes and scales and decodes them. Does NOT hold the cache and
does not run attention. Layouts are in `ops/kv_layout`, the meaning of code space is in
the package's docstring.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.kv_codec.lattice import (
    MAX_SCALE,
    choose_scales,
    inverse_scales,
    lattice_weights,
    nearest_points,
    per_nibble,
)
from engine.ops.kv_layout import BLOCK_DIMS, E8_HEAD_DIMS, GROUP_DIMS, KvFormat, is_rotated

_BATCH_VALUES = 1 << 16  # values encoded at once: the four candidates' intermediates then stay in a core's cache


@dataclass(frozen=True, slots=True)
class Encoded:
    """Codes [T, Hkv, columns] and, for formats that have them, scales [Hkv, G, T] fp16."""

    codes: Tensor
    scales: Tensor | None


def to_code_space(kv_format: KvFormat, x: Tensor, centre: Tensor | None = None) -> Tensor:
    """What the format's encoder takes: H (x - centre) for rotated formats, else x, in fp32.

    Shapes: x [T, Hkv, D]; centre [Hkv, D] fp32 or None for zeros; out [T, Hkv, D] fp32.
    """
    values = x.to(torch.float32)
    if not is_rotated(kv_format):
        return values
    return rotate(values if centre is None else values - centre)


def from_code_space(kv_format: KvFormat, y: Tensor, centre: Tensor | None = None) -> Tensor:
    """The inverse of to_code_space up to fp32 rounding: H y + centre for rotated formats, else y.

    Also maps an attention output of code space back, with the value side's centre (one row per query head then).

    Shapes: y [T, H, D] fp32; centre [H, D] fp32 or None; out [T, H, D] fp32.
    """
    if not is_rotated(kv_format):
        return y
    x = rotate(y)
    return x if centre is None else x + centre


def rotate(x: Tensor) -> Tensor:
    """Normalised natural-order Hadamard transform of every 64 consecutive dims; its own inverse.

    Shapes:  x [..., D], D a multiple of 64; out the same shape, fp32.
    Numeric: adds in butterfly order (distances 1, 2, 4, 8, 16, 32), then one exact multiplication by 1/8: reproducible.
    """
    y = x.to(torch.float32).reshape(-1, GROUP_DIMS)
    distance = 1
    while distance < GROUP_DIMS:
        low, high = y.reshape(-1, GROUP_DIMS // (2 * distance), 2, distance).unbind(2)
        y = torch.stack((low + high, low - high), dim=2)
        distance *= 2
    return (y * 0.125).reshape(x.shape)


def encode(kv_format: KvFormat, y: Tensor) -> Encoded:
    """Code values that are already in code space.

    Shapes:  y [T, Hkv, D] fp32.
    Raises:  FloatingPointError when y is not finite.
    """
    _require_finite(y)
    if kv_format == "rk4v4-e8":
        return _encode_e8(y)
    if kv_format == "int8":
        return _encode_int8(y)
    return Encoded(y.to(torch.bfloat16 if kv_format == "bf16" else torch.float32), None)


def decode(encoded: Encoded) -> Tensor:
    """Values in code space, [T, Hkv, D] fp32; the codes' type names the format.

    Numeric: exact for every code and scale.
    """
    if encoded.scales is None:
        return encoded.codes.to(torch.float32)
    scales = encoded.scales.permute(2, 0, 1).to(torch.float32)  # [T, Hkv, G]
    if encoded.codes.dtype == torch.int8:
        groups = torch.unflatten(encoded.codes.to(torch.float32), -1, (-1, GROUP_DIMS))  # [T, Hkv, G, 64]
        return (groups * scales.unsqueeze(-1)).flatten(-2)
    halves = unpack(encoded.codes).to(torch.float32)  # [T, Hkv, 8, W]
    return (halves * (per_nibble(scales, -1) * 0.5).unsqueeze(-1)).flatten(-2)


def pack(points: Tensor, cosets: Tensor) -> Tensor:
    """Words of lattice points n + c / 2.

    Shapes: points [..., 8, W] int32 in -8..7 with an even sum over the 8; cosets [..., W] int32 in {0, 1}; out [..., W]
            int32.
    """
    nibbles = points & 15
    words = ((nibbles.select(-2, 7) & 14) | cosets) << 28
    for i in range(BLOCK_DIMS - 1):
        words = words | (nibbles.select(-2, i) << (4 * i))
    return words


def unpack(words: Tensor) -> Tensor:
    """Twice the lattice points: 2 n + c, in -16..15.

    Shapes: words [..., W] int32, any bits; out [..., 8, W] int32, in dim order when the last two axes are flattened.
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device).unsqueeze(-1)
    nibbles = (words.unsqueeze(-2) >> shifts) & 15  # [..., 8, W] int32
    last = nibbles.select(-2, 7)
    cosets = last & 1
    parity = nibbles.narrow(-2, 0, 7).sum(dim=-2, dtype=torch.int32) & 1
    nibbles.select(-2, 7).copy_((last & 14) | parity)
    return 2 * ((nibbles ^ 8) - 8) + cosets.unsqueeze(-2)


def _require_finite(y: Tensor) -> None:
    if not bool(torch.isfinite(y).all()):
        raise FloatingPointError(f"{int((~torch.isfinite(y)).sum())} of {y.numel()} values to encode are not finite")


def _encode_int8(y: Tensor) -> Encoded:
    groups = torch.unflatten(y, -1, (-1, GROUP_DIMS))  # [T, Hkv, G, 64]
    absmax = groups.abs().amax(dim=-1)
    divisor = torch.tensor(127.0, dtype=torch.float32, device=y.device)
    scales = (absmax / divisor).clamp(max=MAX_SCALE).to(torch.float16)  # [T, Hkv, G]
    scaled = groups * inverse_scales(scales).unsqueeze(-1)
    codes = scaled.round().clamp(-127, 127).to(torch.int8).flatten(-2)
    return Encoded(codes, scales.permute(1, 2, 0).contiguous())


def _encode_e8(y: Tensor) -> Encoded:
    num_tokens, num_heads, head_dim = y.shape
    assert head_dim in E8_HEAD_DIMS, f"head_dim {head_dim} is not in {E8_HEAD_DIMS}"
    codes = []
    scales = []
    for rows in torch.split(y.to(torch.float32).reshape(-1, head_dim), max(1, _BATCH_VALUES // head_dim)):
        chosen = choose_scales(rows)
        codes.append(pack(*nearest_points(rows, chosen, lattice_weights(chosen))))
        scales.append(chosen)
    words = torch.cat(codes).reshape(num_tokens, num_heads, -1)  # [T, Hkv, W] int32
    by_token = torch.cat(scales).reshape(num_tokens, num_heads, -1)  # [T, Hkv, G] fp16
    return Encoded(words, by_token.permute(1, 2, 0).contiguous())
