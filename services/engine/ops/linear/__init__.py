"""Linear layers y = x W^T over dense or group-quantised rows. Owns the layout that kernels read and its reference.

Matrices
    DenseMatrix       weight [N, K] fp32 or bf16
    QuantizedMatrix   codes [N, K * 4 / 32] int32 (8 bits: [N, K * 8 / 32]), scales [ceil(K / G), N] fp16, minima the
                      same or None, high [N, K / 8] uint8 (5 bits) or int16 (6 bits), None for 4 and 8 bits

Formula: W[n, k] = scale[k // G, n] * q[n, k] + minimum[k // G, n]     with minima
         W[n, k] = scale[k // G, n] * (q[n, k] - 2^(bits - 1))         without; q is unsigned, 0 .. 2^bits - 1
Numeric: scale and minimum widen to fp32 before use; the product of scale and code is exact in fp32 (11 + bits
         significant bits), the sum with the minimum rounds once. A scale may be negative.

Packing ("planes", LAYOUT_VERSION 1), along K, row by row
    A word has F fields: eight of 4 bits (codes of 4, 5 and 6 bits) or four of 8 bits (codes of 8 bits). A superblock is
    S = 64 F elements = 64 int32 words of one row: field i of word j (least significant first) is element 64 i + j. So
    S is 512, or 256 for 8 bits. A plane (one i) is 64 consecutive elements: with G = 64 it is one group, whose scale is
    one number per row.
    Codes of 5 and 6 bits: the field holds the low four bits; the h = bits - 4 bits above them are in `high`, a lane per
    word: bits i h .. i h + h - 1 of high[n, j] belong to field i of codes[n, j]. A kernel loads both with one index and
    one layout, so nothing is shuffled: q_i = (codes >> 4 i & 15) | (high >> h i & (2^h - 1)) << 4.
    Tail: the last t = K mod S elements are one smaller superblock of w = t / F words with the same rule: field i of
    word j is element w i + j. K must be a multiple of F; a row then has exactly K / F words.

Functions
    pack_codes, pack_high_bits   codes [N, K] uint8 -> words and lanes, NumPy (`ops/linear_layout`, no torch)
    unpack_codes                 the inverse, torch on the words' device
    dequantize                   matrix -> [N, K] fp32
    take_rows                    matrix, row indices [T] -> [T, K] fp32 (an embedding lookup)
    linear                       x [T, K] fp32, matrix -> [T, N] fp32; accumulates in fp32
Domain:  bits in {4, 5, 6, 8}, G >= 1, T >= 1, N >= 1, K >= 1 and a multiple of F.
Source:  planes as the left operand of a matrix unit need no shuffle and no transposed scale load; [ceil(K/G), N] scales
         read whole sectors. Q4_0, Q4_1 and Q8_0 of GGUF map onto this without loss (G = 32).
"""

from engine.ops.linear.matrix import DenseMatrix, Matrix, QuantizedMatrix
from engine.ops.linear.reference import dequantize, linear, take_rows
from engine.ops.linear.unpacking import unpack_codes
from engine.ops.linear_layout import LAYOUT_VERSION, Bits, num_groups, num_words, pack_codes, pack_high_bits

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
    "pack_high_bits",
    "take_rows",
    "unpack_codes",
]
