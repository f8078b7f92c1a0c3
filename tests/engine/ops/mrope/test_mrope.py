"""Interleaved three-axis RoPE tables against the library's rotary module and against plain RoPE."""

import pytest
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from engine.ops.mrope import make_mrope_tables
from engine.ops.rope import make_tables


def rotary_module(sections: tuple[int, int, int], head_dim: int) -> Qwen3_5TextRotaryEmbedding:
    return Qwen3_5TextRotaryEmbedding(
        Qwen3_5TextConfig(
            head_dim=head_dim,
            rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                             "mrope_section": list(sections), "mrope_interleaved": True},
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("head_dim", "sections"), [(256, (11, 11, 10)), (64, (3, 3, 2)), (32, (2, 1, 1)), (48, (2, 2, 2))]
)
def test_tables_equal_the_librarys_bit_for_bit(head_dim: int, sections: tuple[int, int, int]) -> None:
    positions = torch.randint(0, 262_144, (3, 500), generator=torch.Generator().manual_seed(1))
    cos, sin = rotary_module(sections, head_dim)(torch.zeros(1), positions.unsqueeze(1))
    rotary_dims = head_dim // 4
    tables = make_mrope_tables(positions, rotary_dims=rotary_dims, theta=1e7, sections=sections)
    assert torch.equal(tables.cos[:, 0], cos[0])
    assert torch.equal(tables.sin[:, 0, rotary_dims // 2 :], sin[0, :, rotary_dims // 2 :])
    assert torch.equal(tables.sin[:, 0, : rotary_dims // 2], -sin[0, :, : rotary_dims // 2])


def test_axes_follow_the_sections_of_the_27b() -> None:
    """Ones in turn on each axis show which frequencies it turns: 11 height, 10 width, 11 time, interleaved."""
    for axis, want in ((0, [0, *range(3, 31, 3)]), (1, list(range(1, 33, 3))), (2, list(range(2, 30, 3)))):
        positions = torch.zeros(3, 1, dtype=torch.int64)
        positions[axis] = 1
        sin = make_mrope_tables(positions, rotary_dims=64, theta=1e7, sections=(11, 11, 10)).sin[0, 0, 32:]
        assert torch.nonzero(sin).flatten().tolist() == want


def test_text_positions_give_plain_rope() -> None:
    positions = torch.arange(300)
    tables = make_mrope_tables(positions.expand(3, -1), rotary_dims=64, theta=1e7, sections=(11, 11, 10))
    plain = make_tables(positions, rotary_dims=64, theta=1e7)
    torch.testing.assert_close(tables.cos, plain.cos, atol=3e-5, rtol=0)
    torch.testing.assert_close(tables.sin, plain.sin, atol=3e-5, rtol=0)


def test_sections_that_do_not_fit_are_our_bug() -> None:
    with pytest.raises(AssertionError, match="do not add up to 32"):
        make_mrope_tables(torch.zeros(3, 1, dtype=torch.int64), rotary_dims=64, theta=1e7, sections=(11, 11, 11))
