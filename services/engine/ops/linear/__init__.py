"""Linear layers y = x W^T over dense or group-quantised rows. Owns the layout that kernels read and its reference.

Matrices
    DenseMatrix       weight [N, K] fp32
    QuantizedMatrix   codes [N, K * bits / 32] int32, scales [ceil(K / G), N] fp16, minima the same or None

Formula: W[n, k] = scale[k // G, n] * q[n, k] + minimum[k // G, n]     with minima
         W[n, k] = scale[k // G, n] * (q[n, k] - 2^(bits - 1))         without; q is unsigned, 0 .. 2^bits - 1
Numeric: scale and minimum widen to fp32 before use; the product of scale and code is exact in fp32 (11 + bits
         significant bits), the sum with the minimum rounds once.

Packing ("planes", LAYOUT_VERSION 1), along K, row by row
    A superblock is S = 64 * 32 / bits elements = 64 int32 words of one row: field i of word j (bits i * bits and up,
    least significant first) is element 64 i + j. 4 bits: S = 512, eight fields; 8 bits: S = 256, four fields. A plane
    (one i) is 64 consecutive elements, so with G = 64 a plane is one group and its scale is one number per row.
    Tail: the last t = K mod S elements are one smaller superblock of w = t * bits / 32 words with the same rule:
    field i of word j is element w i + j. K must be a multiple of 32 / bits; a row is then exactly K * bits / 32 words.

Functions
    pack_codes                   codes [N, K] uint8 -> words [N, K * bits / 32] int32, NumPy on the host
    unpack_codes                 the inverse, torch on the words' device
    dequantize                   matrix -> [N, K] fp32
    take_rows                    matrix, row indices [T] -> [T, K] fp32 (an embedding lookup)
    linear                       x [T, K] fp32, matrix -> [T, N] fp32; accumulates in fp32
Domain:  bits in {4, 8}, G >= 1, T >= 1, N >= 1, K >= 1 and a multiple of 32 / bits.
Source:  planes as the left operand of a matrix unit need no shuffle and no transposed scale load; [ceil(K/G), N] scales
         read whole sectors. Q4_0, Q4_1 and Q8_0 of GGUF map onto this without loss (G = 32).
"""

from engine.ops.linear.matrix import (
    LAYOUT_VERSION,
    Bits,
    DenseMatrix,
    Matrix,
    QuantizedMatrix,
    num_groups,
    num_words,
)
from engine.ops.linear.packing import pack_codes, unpack_codes
from engine.ops.linear.reference import dequantize, linear, take_rows

__all__ = [
    "LAYOUT_VERSION",
    "Bits",
    "DenseMatrix",
    "Matrix",
    "QuantizedMatrix",
    "dequantize",
    "linear",
    "num_groups",
    "num_words",
    "pack_codes",
    "take_rows",
    "unpack_codes",
]
