"""Second implementation of rk4v4-e8, scalar NumPy fp32 straight from the format's text: slow, one head-token at a time.

Owns the oracle that the torch reference is compared with byte by byte; shares no code with it.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

F = np.float32
DIVISORS = [F(7.5), F(8.25), F(9.0), F(10.0)]
Floats = NDArray[np.float32]


def scales_of(y: Floats) -> list[list[np.float16]]:
    """Candidate scales, four for every group of 64."""
    result = []
    for group in y.reshape(-1, 64):
        absmax = np.max(np.abs(group))
        row = [np.float16(min(F(absmax / d), F(65504.0))) for d in DIVISORS]
        result.append([row[0] if s == 0 else s for s in row])
    return result


def fit_block(block: Floats, scales: list[np.float16], coset: int) -> tuple[np.float32, list[int]]:
    """Error and integer coordinates of one block of 8 in one coset; scales are those of each nibble."""
    errors, points, costs = [], [], []
    for i in range(8):
        wide = F(scales[i])
        inverse = F(0) if wide == 0 else F(F(1) / wide)
        weight = F(wide * wide)
        v = F(F(block[i] * inverse) - F(0.5 * coset))
        r = int(min(max(np.rint(v), -8), 7))
        e = F(v - F(r))
        errors.append(F(F(e * e) * weight))
        points.append(r)
        if r < 7:
            costs.append((F(F(F(1) - F(F(2) * e)) * weight), i, 0, +1))
        if r > -8:
            costs.append((F(F(F(1) + F(F(2) * e)) * weight), i, 1, -1))
    t = errors
    total = F(F(F(t[0] + t[1]) + F(t[2] + t[3])) + F(F(t[4] + t[5]) + F(t[6] + t[7])))
    if sum(points) % 2:
        cost, i, _, step = min(costs)
        points[i] += step
        total = F(total + cost)
    return total, points


def evaluate(y: Floats, scales: list[np.float16]) -> tuple[np.float32, list[tuple[int, list[int]]]]:
    """Total error and (coset, points) of every block for one scale per group."""
    width = len(y) // 8
    groups = len(scales)
    per_nibble = [scales[i * groups // 8] for i in range(8)]
    errors, chosen = [], []
    for j in range(width):
        block = y[j::width]
        zero, half = fit_block(block, per_nibble, 0), fit_block(block, per_nibble, 1)
        coset = 1 if half[0] < zero[0] else 0
        errors.append((zero, half)[coset][0])
        chosen.append((coset, (zero, half)[coset][1]))
    while len(errors) > 1:
        middle = len(errors) // 2
        errors = [F(errors[j] + errors[j + middle]) for j in range(middle)]
    return errors[0], chosen


def encode(y: Floats) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """Words and scales of one head-token."""
    candidates = scales_of(y)
    selection = [1] * len(candidates)

    def chosen_scales(sel: list[int]) -> list[np.float16]:
        return [row[k] for row, k in zip(candidates, sel, strict=True)]

    best = evaluate(y, chosen_scales(selection))[0]
    for g in range(len(candidates)):
        for k in (0, 2, 3):
            trial = [*selection[:g], k, *selection[g + 1 :]]
            error = evaluate(y, chosen_scales(trial))[0]
            if error < best:
                best, selection = error, trial
    scales = chosen_scales(selection)
    words = []
    for coset, points in evaluate(y, scales)[1]:
        nibbles = [n & 15 for n in points]
        nibbles[7] = (nibbles[7] & 14) | coset
        words.append(sum(nibble << (4 * i) for i, nibble in enumerate(nibbles)))
    return np.array(words, dtype=np.uint32).view(np.int32), np.array(scales, dtype=np.float16)


def decode(words: NDArray[np.int32], scales: NDArray[np.float16]) -> Floats:
    """Values of one head-token from its words and scales, exact."""
    width, groups = len(words), len(scales)
    y = np.zeros(8 * width, dtype=np.float32)
    for j, word in enumerate(words.view(np.uint32).tolist()):
        nibbles = [(word >> (4 * i)) & 15 for i in range(8)]
        coset = nibbles[7] & 1
        nibbles[7] = (nibbles[7] & 14) | (sum(nibbles[:7]) & 1)
        for i, nibble in enumerate(nibbles):
            n = (nibble ^ 8) - 8
            y[width * i + j] = F(2 * n + coset) * F(0.5) * F(scales[i * groups // 8])
    return y


def nearest_by_enumeration(block: Floats, scales: Floats) -> float:
    """Least squared distance in fp64 from a block to any lattice point next to it, both cosets, by trying them all.

    Each coordinate may take its two nearest range values, which contains a nearest point: of any valid point, moving a
    coordinate by an even number towards those two keeps the parity and never adds error.
    """
    best = np.inf
    for coset in (0.0, 0.5):
        options = []
        for y, s in zip(block.astype(np.float64), scales.astype(np.float64), strict=True):
            options.append(sorted(((y - (n + coset) * s) ** 2, n) for n in range(-8, 8))[:2])
        for combination in itertools.product(*options):
            if sum(n for _, n in combination) % 2 == 0:
                best = min(best, sum(e for e, _ in combination))
    return float(best)
