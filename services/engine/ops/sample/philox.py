"""Philox4x32-10 in NumPy and the Gumbel noise made from it. Owns the map from (seed, position, id) to noise."""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD_MASK = 0xFFFFFFFF
_LOW_WORD = np.uint64(_WORD_MASK)
_WORD_BITS = np.uint64(32)


def philox4x32(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Ten rounds on each column of four words.

    Shapes:  counters [4, n], words below 2^32; returns [4, n], words below 2^32.
    """
    c0, c1, c2, c3 = counters
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (second >> _WORD_BITS) ^ c1 ^ np.uint64(k0)
        c2 = (first >> _WORD_BITS) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _LOW_WORD, first & _LOW_WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD_MASK, (k1 + _WEYL[1]) & _WORD_MASK
    return np.stack((c0, c1, c2, c3))


def gumbel_noise(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """G(seed, position, id) for each id.

    Shapes:  ids [n], ascending, n >= 1; returns [n] fp64.
    Domain:  seed and position below 2^64, ids below 2^34.
    """
    first, last = int(ids[0]) >> 2, int(ids[-1]) >> 2
    if last - first < 4 * len(ids):  # close together: one column serves four neighbours
        words = _words(seed, position, np.arange(first, last + 1))
        drawn = words.T.reshape(-1)[ids - 4 * first]
    else:
        words = _words(seed, position, ids >> 2)
        drawn = words[ids & 3, np.arange(len(ids))]
    uniform = (drawn.astype(np.float64) + 0.5) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _words(seed: int, position: int, quads: NDArray[np.int64]) -> NDArray[np.uint64]:
    counters = np.zeros((4, len(quads)), dtype=np.uint64)
    counters[0] = quads
    counters[1], counters[2] = position & _WORD_MASK, position >> 32
    return philox4x32(counters, (seed & _WORD_MASK, seed >> 32))
