"""KV-cache codec: keys and values to codes and back. Owns the formats' arithmetic.

Receives K after qk-norm and RoPE, V as projected; hands on codes and scales, and reads them back. It does NOT keep the
cache, run attention or calibrate centring vectors. Formats, shapes and bytes are in `ops/kv_layout`.

Code space: the formats other than rk4v4-e8 keep x itself. rk4v4-e8 keeps y = H (x - m): m is a fixed centring vector
    [Hkv, D] per layer and side (zeros are valid), H the normalised natural-order Hadamard transform of every 64 dims,
    its own inverse. Decoding gives y^, and attention stays in that space:
      - queries are rotated by the same H after RoPE, in the query's own precision path: (H q).(H k) = q.k. Subtracting
        m_K shifts all scores of one query by the same q.m_K, which softmax does not see, so m_K is never added back;
      - the result of P V^ is in rotated, centred space: out = H (P V^) + m_V (weights sum to 1), BEFORE the sigmoid
        output gate and o_proj. Gating first, or leaving either step out, gives fluent but wrong text.
    New tokens are encoded first and read back from the codes, so prefill and decode see the same values.

Formula: decode: c = nibble_7 & 1; bit 0 of nibble 7 becomes the parity of nibbles 0..6; n_i = (nibble_i ^ 8) - 8;
    value_i = (2 n_i + c) * 0.5 * S_g(i). Encode: for given scales the nearest point of the scaled lattice in the
    weights S^WEIGHT_EXPONENT; scales come from absmax / SCALE_DIVISORS by one sweep of coordinate descent from 8.25.
Numeric: the decoder is exact by construction ((2n + c) has 5 significant bits, a scale 11). The encoder is bit-exact
    given the same y: fp32 throughout, correctly rounded division, half-to-even, no fused multiply-add, the summation
    trees and tie rules written in `lattice.py`. y must be finite.
Source: E8 nearest point after Conway and Sloane, Sphere Packings, chapter 20; the parity-bit layout is ours.
    Measurements are in docs/notes/kv_codec.md.
"""

from engine.ops.kv_codec.reference import (
    Encoded,
    decode,
    encode,
    from_code_space,
    pack,
    rotate,
    to_code_space,
    unpack,
)
from engine.ops.kv_layout import (
    FORMAT_VERSION,
    KvFormat,
    KvLayout,
    fingerprint,
    is_rotated,
    kv_bytes_per_token,
    kv_layout,
)

__all__ = [
    "FORMAT_VERSION",
    "Encoded",
    "KvFormat",
    "KvLayout",
    "decode",
    "encode",
    "fingerprint",
    "from_code_space",
    "is_rotated",
    "kv_bytes_per_token",
    "kv_layout",
    "pack",
    "rotate",
    "to_code_space",
    "unpack",
]
