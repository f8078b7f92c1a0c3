"""The encoders byte by byte against the scalar oracle, and the lattice search against enumeration."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.ops.kv_codec import decode, encode, pack, unpack
from engine.ops.kv_codec.lattice import choose_scales, lattice_weights, nearest_points, squared_error
from support import kv_codec_oracle as oracle

HEAD_DIMS = (64, 128, 256, 512)


def gaussian(head_dim: int, seed: int) -> Tensor:
    return torch.randn(2, head_dim, generator=torch.Generator().manual_seed(seed))


def laplace(head_dim: int, seed: int) -> Tensor:
    y = torch.empty(2, head_dim).exponential_(generator=torch.Generator().manual_seed(seed))
    return y * gaussian(head_dim, seed + 1).sign()


def outliers(head_dim: int, seed: int) -> Tensor:
    return gaussian(head_dim, seed) * torch.where(torch.arange(head_dim) % 64 < 3, 8.0, 1.0)


def unequal_groups(head_dim: int, seed: int) -> Tensor:
    return (
        gaussian(head_dim, seed) * torch.tensor([1.0, 4.0, 0.5, 8.0, 2.0, 1.0, 3.0, 0.1])[torch.arange(head_dim) // 64]
    )


def ties(head_dim: int, seed: int) -> Tensor:
    """Multiples of 1/4 with an absmax that makes one candidate scale exactly 1: rounding and coset ties everywhere."""
    y = torch.randint(-29, 30, (2, head_dim), generator=torch.Generator().manual_seed(seed)) / 4.0
    y[0, ::64], y[1, ::64] = 8.25, 7.5
    return y


def dead_group(head_dim: int, seed: int) -> Tensor:
    y = gaussian(head_dim, seed)
    y[:, -64:] = 0
    return y


def absorbed_group(head_dim: int, seed: int) -> Tensor:
    """The first group's errors vanish in the others' sum, so that all its candidates tie."""
    y = gaussian(head_dim, seed) * 1e3
    y[:, :64] *= 1e-6
    return y


def edge_of_zero(head_dim: int, seed: int) -> Tensor:
    """absmax / 7.5 is the least subnormal fp16, absmax / 10 rounds to zero."""
    return gaussian(head_dim, seed).clamp(-1, 1) * 2.6e-7


def one_hot(head_dim: int, seed: int) -> Tensor:
    y = torch.zeros(2, head_dim)
    y[0, seed % head_dim], y[1, -1] = 1.7, -3.0
    return y


def all_equal(head_dim: int, seed: int) -> Tensor:
    return torch.full((2, head_dim), 0.37)


def zero(head_dim: int, seed: int) -> Tensor:
    return torch.zeros(2, head_dim)


DISTRIBUTIONS = {
    "gaussian": gaussian,
    "laplace": laplace,
    "outliers": outliers,
    "unequal groups": unequal_groups,
    "ties": ties,
    "dead group": dead_group,
    "absorbed group": absorbed_group,
    "edge of zero": edge_of_zero,
    "one-hot": one_hot,
    "all equal": all_equal,
    "zero": zero,
    "tiny, scales 0": lambda head_dim, seed: gaussian(head_dim, seed) * 1e-9,
    "tiny, subnormal scales": lambda head_dim, seed: gaussian(head_dim, seed) * 3e-7,
    "large": lambda head_dim, seed: gaussian(head_dim, seed) * 1e5,
    "beyond the largest scale": lambda head_dim, seed: gaussian(head_dim, seed) * 4e5,
}


def assert_bytes_equal_oracle(y: Tensor) -> None:
    encoded = encode("rk4v4-e8", y.unsqueeze(1))
    assert encoded.scales is not None
    decoded = decode(encoded)
    for t, row in enumerate(y.numpy()):
        words, scales = oracle.encode(row)
        np.testing.assert_array_equal(encoded.scales[0, :, t].numpy().view(np.uint16), scales.view(np.uint16))
        np.testing.assert_array_equal(encoded.codes[t, 0].numpy(), words)
        np.testing.assert_array_equal(decoded[t, 0].numpy(), oracle.decode(words, scales))


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_encode_gives_the_oracles_bytes(name: str, head_dim: int) -> None:
    assert_bytes_equal_oracle(DISTRIBUTIONS[name](head_dim, 11))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_encode_gives_the_oracles_bytes_at_every_width(name: str, head_dim: int, seed: int) -> None:
    assert_bytes_equal_oracle(DISTRIBUTIONS[name](head_dim, 100 + seed))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_lattice_points_are_fixed_points_with_even_sums(name: str, head_dim: int) -> None:
    y = DISTRIBUTIONS[name](head_dim, 5)
    encoded = encode("rk4v4-e8", y.unsqueeze(1))
    assert encoded.scales is not None
    scales = encoded.scales.permute(2, 0, 1)[:, 0]
    points, cosets = nearest_points(decode(encoded)[:, 0], scales, lattice_weights(scales))
    assert torch.equal(pack(points, cosets), encoded.codes[:, 0])
    assert torch.equal(points.sum(1) % 2, torch.zeros_like(cosets, dtype=torch.int64))
    assert int(points.min()) >= -8 and int(points.max()) <= 7


@pytest.mark.parametrize(("head_dim", "num_rows"), [(64, 120), (128, 8), (256, 4), (512, 4)])
def test_error_sums_have_the_oracles_bits(head_dim: int, num_rows: int) -> None:
    """The order of products and sums is part of the format, though it rarely decides a byte."""
    y = torch.cat([unequal_groups(head_dim, seed) for seed in range(num_rows // 2)])
    scales = (y.unflatten(-1, (-1, 64)).abs().amax(-1) / 9).to(torch.float16)
    got = squared_error(y, scales)
    for t in range(len(y)):
        want, _ = oracle.evaluate(y[t].numpy(), list(scales[t].numpy()))
        assert got[t].numpy().view(np.uint32) == want.view(np.uint32)


def nearest_error_and_enumerated(y: Tensor, scales: Tensor) -> tuple[np.ndarray, np.ndarray]:
    points, cosets = nearest_points(y, scales, lattice_weights(scales))
    per_nibble = scales.double().repeat_interleave(8 // scales.shape[1], dim=1).unsqueeze(-1)
    blocks = y.double().unflatten(-1, (8, -1))
    got = (blocks - (points + 0.5 * cosets.unsqueeze(1)) * per_nibble).square().sum(1)
    want = [
        [oracle.nearest_by_enumeration(blocks[t, :, j].numpy(), per_nibble[t, :, 0].numpy()) for j in range(len(row))]
        for t, row in enumerate(got)
    ]
    return got.numpy(), np.array(want)


@pytest.mark.parametrize("head_dim", [64, 256, 512])
def test_nearest_points_are_nearest(head_dim: int) -> None:
    """Also past the range: an eighth of the coordinates is far outside what a nibble holds."""
    generator = torch.Generator().manual_seed(head_dim)
    y = torch.randn(2, head_dim, generator=generator) * torch.where(
        torch.rand(2, head_dim, generator=generator) < 0.125, 8.0, 2.5
    )
    scales = (0.5 + torch.rand(2, head_dim // 64, generator=generator)).to(torch.float16)
    got, want = nearest_error_and_enumerated(y, scales)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.full
def test_nearest_points_are_nearest_on_many_blocks() -> None:
    generator = torch.Generator().manual_seed(9)
    for spread in (0.3, 2.0, 5.0):
        y = torch.randn(20, 256, generator=generator) * spread
        scales = (0.1 + 2 * torch.rand(20, 4, generator=generator)).to(torch.float16)
        got, want = nearest_error_and_enumerated(y, scales)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_worked_example_takes_the_half_integer_coset() -> None:
    z = torch.tensor([0.5, -1.5, 2.4, 0.6, -0.4, 3.5, 1.6, -2.4])
    y = z.repeat_interleave(8).unsqueeze(0)  # head_dim 64: nibble i of every word is z_i
    points, cosets = nearest_points(y, torch.ones(1, 1, dtype=torch.float16), torch.ones(1, 1))
    assert points[0, :, 0].tolist() == [0, -2, 2, 0, -1, 3, 1, -3]
    assert cosets[0].tolist() == [1] * 8


def test_scale_search_never_loses_to_all_groups_at_the_start() -> None:
    y = unequal_groups(256, 3)
    chosen = choose_scales(y)
    start = (y.unflatten(-1, (-1, 64)).abs().amax(-1) / 8.25).to(torch.float16)

    def error(scales: Tensor) -> Tensor:
        points, cosets = nearest_points(y, scales, lattice_weights(scales))
        values = (points + 0.5 * cosets.unsqueeze(1)) * scales.float().repeat_interleave(2, 1).unsqueeze(-1)
        return (values.flatten(1) - y).square().sum(-1)

    assert bool((error(chosen) <= error(start) * (1 + 1e-6)).all())


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=64, max_size=64),
    st.sampled_from([1e-8, 1e-6, 1e-3, 1.0, 1e3]),
)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_any_finite_values_round_trip_within_the_lattice(values: list[float], factor: float) -> None:
    y = torch.tensor(values).reshape(1, 1, 64) * factor
    encoded = encode("rk4v4-e8", y)
    assert encoded.scales is not None
    doubled = unpack(encoded.codes)
    assert torch.equal((doubled & 1).amin(-2), (doubled & 1).amax(-2)), "a block has one coset"
    error = (decode(encoded) - y).square().sum()
    # The covering radius of E8 is 1; coordinates beyond the range and their parity step add at most 3 a block here.
    step = float(encoded.scales.max())
    assert float(error) <= 8 * 3 * step**2 + 64 * 1e-15
    assert torch.equal(encode("rk4v4-e8", y).codes, encoded.codes)


def test_batches_do_not_change_bytes() -> None:
    y = torch.randn(1500, 1, 64, generator=torch.Generator().manual_seed(6))
    whole = encode("rk4v4-e8", y)
    assert whole.scales is not None
    for t in (0, 1023, 1024, 1499):
        alone = encode("rk4v4-e8", y[t : t + 1])
        assert alone.scales is not None
        assert torch.equal(alone.codes[0], whole.codes[t])
        assert torch.equal(alone.scales[..., 0], whole.scales[..., t])


def test_int8_rounds_to_absmax_over_127() -> None:
    y = torch.randn(9, 2, 192, generator=torch.Generator().manual_seed(7)) * 3
    y[0, 0, :64] = 0
    encoded = encode("int8", y)
    assert encoded.scales is not None
    for t, head, group in ((0, 0, 0), (3, 1, 2), (8, 0, 1)):
        values = y[t, head, 64 * group : 64 * group + 64].numpy()
        scale = np.float16(np.max(np.abs(values)) / np.float32(127))
        assert encoded.scales[head, group, t].item() == scale
        inverse = np.float32(1) / np.float32(scale) if scale else np.float32(0)
        want = np.clip(np.rint(values * inverse), -127, 127).astype(np.int8)
        np.testing.assert_array_equal(encoded.codes[t, head, 64 * group : 64 * group + 64].numpy(), want)
    assert float((decode(encoded) - y).abs().max()) <= 0.51 * float(encoded.scales.max())


def test_bf16_and_fp32_store_the_values() -> None:
    y = torch.randn(4, 1, 80)
    assert torch.equal(decode(encode("fp32", y)), y)
    assert torch.equal(decode(encode("bf16", y)), y.to(torch.bfloat16).to(torch.float32))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kv_format", ["bf16", "int8", "rk4v4-e8"])
def test_values_that_are_not_finite_are_reported(kv_format: str, bad: float) -> None:
    y = torch.zeros(2, 1, 64)
    y[1, 0, 3] = bad
    with pytest.raises(FloatingPointError, match="1 of 128 values to encode are not finite"):
        encode(kv_format, y)  # type: ignore[arg-type]
