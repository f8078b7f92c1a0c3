"""What a cached key or value occupies in each KV format: shapes, bytes, constants. Owns layouts, needs no torch.

The memory plan and the cache ask here; `ops/kv_codec` fills these layouts. Does NOT hold values.

Formats:
    fp32       codes [T, Hkv, D] fp32, for oracles only.
    bf16       codes [T, Hkv, D] bf16.
    int8       codes [T, Hkv, D] int8, one fp16 scale absmax / 127 per group of 64 consecutive dims.
    rk4v4-e8   codes [T, Hkv, W] int32, W = D / 8, fp16 scales per group: centred, rotated, E8 at 4 bits an element.
Shapes: K and V have codes and scales of their own, of equal shapes; scales [Hkv, G, T] fp16, G = D / 64.
Domain: D in {64, 128, 256, 512} for rk4v4-e8, a multiple of 64 for int8, any D >= 1 for the others.

Layout of rk4v4-e8: nibble i (bits 4i..4i+3) of word j is dim W i + j. One word is one block of the E8 lattice, points
    n + c / 2 with n in D8 (integers of even sum, -8..7 each) and coset c in {0, 1}. Nibble i is n_i in two's
    complement, but the least significant bit of nibble 7 is implied by the parity of the others and carries c instead.
    Nibble i belongs to scale group g(i) = floor(i G / 8), which is dims 64 g .. 64 g + 63: a plane (one i of all words)
    is W consecutive dims of one group, so its scale is one number per token, contiguous in T.
"""

from dataclasses import dataclass
from typing import Literal

KvFormat = Literal["fp32", "bf16", "int8", "rk4v4-e8"]

# Raised whenever an old reader would misread new codes, or equal input would give other bytes.
FORMAT_VERSION = 1
GROUP_DIMS = 64
BLOCK_DIMS = 8
E8_HEAD_DIMS = (64, 128, 256, 512)
# Scale candidates absmax / d. The descent starts at START_CANDIDATE and tries SWEEP_CANDIDATES once a group, in order.
SCALE_DIVISORS = (7.5, 8.25, 9.0, 10.0)
START_CANDIDATE = 1
SWEEP_CANDIDATES = (0, 2, 3)
# A block's coordinates come from groups of unequal scale S; errors in units of S are weighted by S^2, which is total
# squared error. Changing it changes bytes, never decode; docs/notes/kv_codec.md has the comparison with 1 and 0.
WEIGHT_EXPONENT = 2

# In the order of bytes a token.
_ELEMENT_BYTES: dict[KvFormat, int] = {"fp32": 4, "bf16": 2, "int8": 1, "rk4v4-e8": 4}
_SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shapes and bytes of one attention layer's cache in one format; build it with kv_layout()."""

    kv_format: KvFormat
    num_kv_heads: int
    head_dim: int

    @property
    def num_groups(self) -> int:
        """Scale groups of a head, 0 for formats without scales."""
        return 0 if self.kv_format in ("fp32", "bf16") else self.head_dim // GROUP_DIMS

    @property
    def code_columns(self) -> int:
        """Elements of the code tensor per token and head, in the format's code type."""
        return self.head_dim // BLOCK_DIMS if self.kv_format == "rk4v4-e8" else self.head_dim

    @property
    def code_element_bytes(self) -> int:
        """Bytes of one code element: fp32 4, bf16 2, int8 1, rk4v4-e8 4 (int32)."""
        return _ELEMENT_BYTES[self.kv_format]

    def code_shape(self, num_tokens: int) -> tuple[int, int, int]:
        """Shape of the codes of K, and of V: [T, Hkv, columns]."""
        return (num_tokens, self.num_kv_heads, self.code_columns)

    def scale_shape(self, num_tokens: int) -> tuple[int, int, int]:
        """Shape of the fp16 scales of K, and of V: [Hkv, G, T]; empty for formats without scales."""
        return (self.num_kv_heads, self.num_groups, num_tokens)

    @property
    def side_bytes_per_token(self) -> int:
        """Bytes of one token's keys (or values): codes and scales of all heads."""
        per_head = self.code_columns * self.code_element_bytes + self.num_groups * _SCALE_BYTES
        return self.num_kv_heads * per_head

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token, keys and values together, in one layer."""
        return 2 * self.side_bytes_per_token


def kv_layout(kv_format: KvFormat, num_kv_heads: int, head_dim: int) -> KvLayout:
    """The layout of one layer's cache.

    Raises: ValueError when the format cannot hold this head_dim.
    """
    if kv_format not in _ELEMENT_BYTES:
        raise ValueError(f"unknown KV format {kv_format!r}; known are {', '.join(_ELEMENT_BYTES)}")
    if not _can_hold(kv_format, head_dim):
        wanted = f"in {E8_HEAD_DIMS}" if kv_format == "rk4v4-e8" else f"in multiples of {GROUP_DIMS}"
        raise ValueError(f"KV format {kv_format} needs head_dim {wanted}, not {head_dim}")
    return KvLayout(kv_format, num_kv_heads, head_dim)


def kv_bytes_per_token(kv_format: KvFormat, num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Exact cache bytes of one token over all attention layers (an MTP layer counts as one more).

    Raises: ValueError when the format cannot hold this head_dim.
    """
    return num_layers * kv_layout(kv_format, num_kv_heads, head_dim).bytes_per_token


def smaller_formats(kv_format: KvFormat, head_dim: int) -> tuple[KvFormat, ...]:
    """The formats that take fewer bytes and can hold head_dim, the largest first."""
    formats = tuple(_ELEMENT_BYTES)
    return tuple(smaller for smaller in formats[formats.index(kv_format) + 1 :] if _can_hold(smaller, head_dim))


def is_rotated(kv_format: KvFormat) -> bool:
    """Whether codes hold centred, rotated values, so that queries and outputs must be rotated too."""
    return kv_format == "rk4v4-e8"


def fingerprint(kv_format: KvFormat, head_dim: int) -> str:
    """One line naming all that readers of stored codes must agree on; centring vectors have a digest of their own."""
    if kv_format != "rk4v4-e8":
        group = f" g{GROUP_DIMS} absmax/127" if kv_format == "int8" else ""
        return f"{kv_format} v{FORMAT_VERSION} d{head_dim}{group}"
    divisors = "/".join(f"{d:g}" for d in SCALE_DIVISORS)
    return (
        f"rk4v4-e8 v{FORMAT_VERSION} d{head_dim} h64 plane{head_dim // BLOCK_DIMS} g{GROUP_DIMS} "
        f"w{WEIGHT_EXPONENT} s{divisors} centred"
    )


def _can_hold(kv_format: KvFormat, head_dim: int) -> bool:
    if kv_format == "rk4v4-e8":
        return head_dim in E8_HEAD_DIMS
    return kv_format != "int8" or (head_dim > 0 and head_dim % GROUP_DIMS == 0)
