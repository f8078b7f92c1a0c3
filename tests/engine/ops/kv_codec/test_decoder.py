"""The e8 decoder over arbitrary words and every scale, against the format's formula in integers."""

import numpy as np
import pytest
import torch

from engine.ops.kv_codec import Encoded, decode, pack, unpack
from support import kv_codec_oracle as oracle


def random_words(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)


def expected_doubled(words: np.ndarray) -> np.ndarray:
    """2 n + c by the formula, vectorised in NumPy with a popcount for the parity. [count, 8]"""
    parity = np.bitwise_count(words & np.uint32(0x01111111)) & 1
    coset = (words >> np.uint32(28)) & np.uint32(1)
    restored = (words & ~np.uint32(1 << 28)) | (parity.astype(np.uint32) << np.uint32(28))
    nibbles = (restored[:, None] >> np.arange(0, 32, 4, dtype=np.uint32)) & np.uint32(15)
    points = (nibbles.astype(np.int64) ^ 8) - 8
    return 2 * points + coset[:, None].astype(np.int64)


def test_unpack_follows_the_formula_on_sampled_words() -> None:
    edges = np.array(
        [0, 1, 2**31, 2**32 - 1, 0x88888888, 0x77777777, 0x11111111, 0x10000000, 0xF0000000], dtype=np.uint32
    )
    words = np.concatenate([edges, random_words(300_000, 1)])
    got = unpack(torch.from_numpy(words.view(np.int32)).unsqueeze(-1)).squeeze(-1)
    np.testing.assert_array_equal(got.numpy(), expected_doubled(words))


def test_every_word_is_a_lattice_point_and_packs_back() -> None:
    words = torch.from_numpy(random_words(100_000, 2).view(np.int32)).unsqueeze(-1)
    doubled = unpack(words)
    cosets = doubled[:, 0] & 1
    points = (doubled - cosets.unsqueeze(1)) >> 1
    assert int(points.min()) == -8 and int(points.max()) == 7
    assert torch.equal(points.sum(1) & 1, torch.zeros_like(cosets, dtype=torch.int64)), "n is in D8"
    assert torch.equal(pack(points, cosets), words), "all 2^32 words are distinct points"


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_decode_is_exact_for_all_65536_scales(head_dim: int) -> None:
    """Every fp16 pattern, infinities and NaNs apart, in every group position."""
    groups, width = head_dim // 64, head_dim // 8
    patterns = np.arange(65_536, dtype=np.uint16).view(np.float16)
    patterns = patterns[np.isfinite(patterns)]
    scales = torch.from_numpy(np.stack([np.roll(patterns, 97 * g) for g in range(groups)]))  # [G, T]
    words = random_words(len(patterns) * 2, 3).reshape(-1, 2)
    codes = torch.from_numpy(np.tile(words, (1, width // 2)).view(np.int32)).unsqueeze(1)
    got = decode(Encoded(codes, scales.unsqueeze(0)))[:, 0].double()
    per_nibble = scales.double().T.repeat_interleave(8 // groups, dim=1)  # [T, 8]
    for j in (0, width - 1):
        doubled = torch.from_numpy(expected_doubled(words[:, j % 2])).double()
        assert torch.equal(got[:, j::width], doubled * 0.5 * per_nibble)


def test_decode_agrees_with_the_scalar_oracle() -> None:
    words = random_words(64, 4).view(np.int32)
    scales = np.array([0.5, 3.0, 2.0**-24, 65504.0], dtype=np.float16)
    for groups in (1, 2, 4):
        row = words[: 8 * groups]
        encoded = Encoded(torch.from_numpy(row)[None, None], torch.from_numpy(scales[:groups])[None, :, None])
        np.testing.assert_array_equal(decode(encoded)[0, 0].numpy(), oracle.decode(row, scales[:groups]))
