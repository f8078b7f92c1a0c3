"""Byte counts, shapes and refusals of the KV formats."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.ops.kv_codec import encode
from engine.ops.kv_layout import KvFormat, fingerprint, is_rotated, kv_bytes_per_token, kv_layout

SERVICES = Path(__file__).resolve().parents[4] / "services"
FORMATS: tuple[KvFormat, ...] = ("fp32", "bf16", "int8", "rk4v4-e8")


@pytest.mark.parametrize(
    ("kv_format", "per_head_token", "main", "with_mtp", "gib_main", "gib_mtp"),
    [
        ("bf16", 1024, 65_536, 69_632, 16.000, 17.000),
        ("int8", 528, 33_792, 35_904, 8.250, 8.766),
        ("rk4v4-e8", 272, 17_408, 18_496, 4.250, 4.516),
    ],
)
def test_bytes_per_token_of_the_27b(
    kv_format: KvFormat, per_head_token: int, main: int, with_mtp: int, gib_main: float, gib_mtp: float
) -> None:
    assert kv_bytes_per_token(kv_format, 1, 1, 256) == per_head_token
    assert kv_bytes_per_token(kv_format, 16, 4, 256) == main
    assert kv_bytes_per_token(kv_format, 17, 4, 256) == with_mtp
    assert main * 262_144 / 2**30 == pytest.approx(gib_main, abs=5e-4)
    assert with_mtp * 262_144 / 2**30 == pytest.approx(gib_mtp, abs=5e-4)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_layout_states_what_encode_makes(kv_format: KvFormat, head_dim: int) -> None:
    layout = kv_layout(kv_format, 3, head_dim)
    encoded = encode(kv_format, torch.randn(5, 3, head_dim))
    assert encoded.codes.shape == layout.code_shape(5)
    num_bytes = encoded.codes.nbytes
    if encoded.scales is None:
        assert layout.num_groups == 0
    else:
        assert encoded.scales.shape == layout.scale_shape(5)
        assert encoded.scales.dtype == torch.float16
        assert encoded.scales.is_contiguous()
        num_bytes += encoded.scales.nbytes
    assert encoded.codes.is_contiguous()
    assert num_bytes == 5 * layout.side_bytes_per_token
    assert layout.bytes_per_token == 2 * layout.side_bytes_per_token


@pytest.mark.parametrize("head_dim", [0, 32, 72, 192, 320, 1024])
def test_e8_refuses_other_head_dims(head_dim: int) -> None:
    with pytest.raises(ValueError, match=rf"rk4v4-e8 needs head_dim .* not {head_dim}$"):
        kv_layout("rk4v4-e8", 1, head_dim)


def test_int8_and_unknown_formats_are_refused_by_name() -> None:
    assert kv_layout("int8", 1, 192).num_groups == 3
    with pytest.raises(ValueError, match="int8 needs head_dim in multiples of 64, not 72"):
        kv_layout("int8", 1, 72)
    with pytest.raises(ValueError, match="unknown KV format 'rk8v4'"):
        kv_layout("rk8v4", 1, 64)  # type: ignore[arg-type]


def test_fingerprints_name_every_choice_and_differ() -> None:
    assert fingerprint("rk4v4-e8", 256) == "rk4v4-e8 v1 d256 h64 plane32 g64 w2 s7.5/8.25/9/10 centred"
    lines = {fingerprint(kv_format, head_dim) for kv_format in FORMATS for head_dim in (64, 256)}
    assert len(lines) == 8
    assert [f for f in FORMATS if is_rotated(f)] == ["rk4v4-e8"]


def test_layout_needs_no_torch() -> None:
    probe = "import sys, engine.ops.kv_layout; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], env={"PYTHONPATH": str(SERVICES)}, check=True)
