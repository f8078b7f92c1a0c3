"""The Hadamard rotation, and attention in rotated, centred space against attention in plain space."""

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.ops.kv_codec import decode, encode, from_code_space, rotate, to_code_space


def hadamard(order: int) -> Tensor:
    matrix = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return torch.from_numpy(matrix / np.sqrt(order))


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_rotate_is_the_natural_order_hadamard_matrix_per_group(head_dim: int) -> None:
    x = torch.randn(7, 2, head_dim, generator=torch.Generator().manual_seed(1))
    want = (x.double().unflatten(-1, (-1, 64)) @ hadamard(64)).flatten(-2)
    torch.testing.assert_close(rotate(x).double(), want, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotate(rotate(x)), x, atol=1e-6, rtol=0)


def test_rotate_is_exact_where_sums_are() -> None:
    x = torch.randint(-512, 513, (50, 256), generator=torch.Generator().manual_seed(2)).to(torch.float32)
    want = (x.double().unflatten(-1, (-1, 64)) @ hadamard(64)).flatten(-2)
    assert torch.equal(rotate(x).double(), want)
    assert torch.equal(rotate(rotate(x)), x)
    assert torch.equal(rotate(x.to(torch.bfloat16)), rotate(x.to(torch.bfloat16).to(torch.float32)))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [Tq, Hq, D], k and v [T, Hkv, D]; every query sees all keys."""
    share = q.shape[1] // k.shape[1]
    scores = torch.einsum("thd,shd->hts", q, k.repeat_interleave(share, 1)) / k.shape[2] ** 0.5
    return torch.einsum("hts,shd->thd", scores.softmax(-1), v.repeat_interleave(share, 1))


def test_attention_in_code_space_equals_attention_outside() -> None:
    """Rotate Q, never add the key centre back, un-rotate PV and add the value centre: exact but for rounding."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(4, 6, 256, generator=generator)
    k = torch.randn(90, 2, 256, generator=generator) + 3 * torch.randn(2, 256, generator=generator)
    v = torch.randn(90, 2, 256, generator=generator)
    centre_k, centre_v = k.mean(0), torch.randn(2, 256, generator=generator)
    y_k, y_v = to_code_space("rk4v4-e8", k, centre_k), to_code_space("rk4v4-e8", v, centre_v)
    inside = attend(rotate(q), y_k, y_v)
    out = from_code_space("rk4v4-e8", inside, centre_v.repeat_interleave(3, 0))
    torch.testing.assert_close(out, attend(q, k, v), atol=2e-5, rtol=0)


def test_quantised_attention_equals_attention_over_restored_values() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(60, heads, 128, generator=generator) for heads in (4, 2, 2))
    centre_k, centre_v = k.mean(0), v.mean(0)
    k_codes = decode(encode("rk4v4-e8", to_code_space("rk4v4-e8", k, centre_k)))
    v_codes = decode(encode("rk4v4-e8", to_code_space("rk4v4-e8", v, centre_v)))
    inside = from_code_space("rk4v4-e8", attend(rotate(q), k_codes, v_codes), centre_v.repeat_interleave(2, 0))
    restored_k = from_code_space("rk4v4-e8", k_codes, centre_k)
    restored_v = from_code_space("rk4v4-e8", v_codes, centre_v)
    torch.testing.assert_close(inside, attend(q, restored_k, restored_v), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kv_format", ["fp32", "bf16", "int8"])
def test_other_formats_keep_plain_space(kv_format: str) -> None:
    x = torch.randn(3, 1, 64)
    assert torch.equal(to_code_space(kv_format, x, torch.ones(1, 64)), x)  # type: ignore[arg-type]
    assert torch.equal(from_code_space(kv_format, x, torch.ones(1, 64)), x)  # type: ignore[arg-type]
