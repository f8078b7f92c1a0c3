"""Noise: the generator against its published vectors, and the map from (seed, position, id) to it."""

import math

import numpy as np
import pytest

from engine.ops.sample import gumbel_noise, philox4x32

ALL_ONES = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[str]:
    words = philox4x32(np.array(counter, dtype=np.uint64)[:, None], key)[:, 0]
    return [f"{int(word):08x}" for word in words]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ALL_ONES,) * 4, (ALL_ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_matches_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: str
) -> None:
    assert philox(counter, key) == expected.split()


def test_noise_is_built_from_the_documented_counter() -> None:
    seed, position, token_id = 0x1122334455667788, 0x1_0000_0005, 10
    word = philox((token_id // 4, 5, 1, 0), (0x55667788, 0x11223344))[token_id % 4]
    uniform = (int(word, 16) + 0.5) / 2**32
    assert gumbel_noise(seed, position, np.array([token_id]))[0] == pytest.approx(-math.log(-math.log(uniform)))


def test_noise_of_an_id_does_not_depend_on_its_company() -> None:
    everyone = gumbel_noise(7, 99, np.arange(1001))
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 300, 1000):
        ids = np.sort(rng.choice(1001, size, replace=False))
        assert np.array_equal(gumbel_noise(7, 99, ids), everyone[ids])
    assert np.array_equal(gumbel_noise(7, 99, np.array([3, 200_000])), gumbel_noise(7, 99, np.arange(200_001))[[3, -1]])


def test_noise_differs_between_places_and_seeds_and_has_gumbel_moments() -> None:
    ids = np.arange(20_000)
    here, there, other = gumbel_noise(1, 1, ids), gumbel_noise(1, 2, ids), gumbel_noise(2, 1, ids)
    for left, right in ((here, there), (here, other), (there, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.03
    assert here.mean() == pytest.approx(np.euler_gamma, abs=0.03)
    assert here.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.03)
