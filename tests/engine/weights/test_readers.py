"""Every stored kind of a matrix, against numbers that never went through the reader: any row range gives those rows."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.weights.readers.fp8 import Fp8BlockReader
from engine.weights.readers.int4 import AwqReader, GptqReader, PackQuantizedReader
from engine.weights.readers.plain import PlainReader
from engine.weights.readers.row_reader import RowReader, StoredArray
from support import safetensors_writer as writer
from support.safetensors_writer import Int4, Stored, random_int4

RANGES = [(0, 1), (3, 17), (8, 16), (15, 40), (0, 40)]


def arrays(parts: Mapping[str, Stored]) -> dict[str, StoredArray]:
    return {
        suffix: StoredArray(f"m.{suffix}", dtype, shape, np.frombuffer(content, dtype=np.uint8))
        for suffix, (dtype, shape, content) in parts.items()
    }


def assert_rows(reader: RowReader, values: NDArray[np.float32]) -> None:
    assert reader.shape == values.shape
    for start, stop in RANGES:
        assert np.array_equal(reader.read(start, stop).values, values[start:stop])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_plain_numbers(dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(40, 24)).astype(np.float32)
    torch_dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    exact = torch.from_numpy(values).to(torch_dtype).to(torch.float32).numpy()
    (array,) = arrays({"weight": writer.stored(dtype, values)}).values()
    assert_rows(PlainReader(array, (40, 24)), exact)


def test_fp8_blocks_equal_torch() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (300, 200), dtype=np.uint8)
    codes[(codes & 127) == 127] = 0  # NaN
    scale = rng.uniform(0.001, 0.1, (3, 2)).astype(np.float32)
    numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    expected = numbers * np.kron(scale, np.ones((128, 128), dtype=np.float32))[:300, :200]
    parts = arrays({"weight": writer.stored("F8_E4M3", codes), "weight_scale_inv": writer.stored("F32", scale)})
    reader = Fp8BlockReader(parts["weight"], parts["weight_scale_inv"])
    assert_rows(reader, expected)
    assert np.array_equal(reader.read(120, 300).values, expected[120:300])


def test_every_fp8_byte_equals_torch() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    parts = arrays({"weight": writer.stored("F8_E4M3", codes), "scale": writer.stored("F32", np.ones((1, 1)))})
    values = Fp8BlockReader(parts["weight"], parts["scale"]).read(0, 2).values
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    assert np.array_equal(values, expected, equal_nan=True) and np.isnan(values).sum() == 2


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_gptq(group: int, v2: bool, symmetric: bool) -> None:
    matrix = random_int4(40, 256, group, symmetric=symmetric, seed=group)
    parts = arrays(writer.gptq(matrix, v2=v2, with_index=symmetric))
    assert_rows(GptqReader("m", parts, "gptq_v2" if v2 else "gptq"), in_fp16(matrix).values)


def test_gptq_with_columns_in_another_order() -> None:
    matrix = random_int4(40, 256, 64, symmetric=False, seed=5, shuffled=True)
    reader = GptqReader("m", arrays(writer.gptq(matrix)), "gptq")
    assert_rows(reader, in_fp16(matrix).values)
    assert reader.read(0, 8).scale_hints is None


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq(group: int, symmetric: bool) -> None:
    matrix = random_int4(40, 256, group, symmetric=symmetric, seed=group + 1)
    assert_rows(AwqReader("m", arrays(writer.awq(matrix))), in_fp16(matrix).values)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("num_cols", "group"), [(256, 32), (256, 64), (256, 128), (252, 36)])
def test_compressed_tensors(num_cols: int, group: int, symmetric: bool) -> None:
    matrix = random_int4(43, num_cols, group, symmetric=symmetric, seed=group + 2)
    reader = PackQuantizedReader("m", arrays(writer.pack_quantized(matrix, symmetric=symmetric)))
    assert reader.shape == (43, num_cols)
    for start, stop in [*RANGES, (40, 43)]:
        assert np.array_equal(reader.read(start, stop).values, matrix.values[start:stop])


def test_compressed_tensors_with_a_group_index() -> None:
    matrix = random_int4(40, 256, 64, symmetric=True, seed=9, shuffled=True)
    parts = arrays(writer.pack_quantized(matrix, symmetric=True, with_index=True))
    assert_rows(PackQuantizedReader("m", parts), matrix.values)


def test_hints_are_the_stored_scales() -> None:
    matrix = random_int4(40, 256, 128, symmetric=True, seed=3)
    hints = PackQuantizedReader("m", arrays(writer.pack_quantized(matrix, symmetric=True))).read(5, 9).scale_hints
    assert hints is not None
    assert np.array_equal(hints.astype(np.float32), np.repeat(matrix.scales[5:9], 2, axis=1))
    narrow = random_int4(40, 256, 32, symmetric=True, seed=3)
    reader = PackQuantizedReader("m", arrays(writer.pack_quantized(narrow, symmetric=True)))
    assert reader.read(5, 9).scale_hints is None


def in_fp16(matrix: Int4) -> Int4:
    """The matrix with scales as fp16 keeps them; bf16 ones in this range fit."""
    assert np.array_equal(matrix.scales.astype(np.float16).astype(np.float32), matrix.scales)
    return matrix


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"qzeros": None}, "tensor m.qzeros is missing beside m.qweight"),
        ({"qzeros": ("I32", (3, 5), b"\0" * 60)}, r"tensor m.qzeros is \[3, 5\], expected \[4, 5\]"),
        ({"scales": ("F16", (4, 39), b"\0" * 312)}, r"tensor m.scales is \[4, 39\], expected \[4, 40\]"),
        ({"scales": ("I32", (4, 40), b"\0" * 640)}, "tensor m.scales is stored as I32"),
        ({"qweight": ("F32", (32, 40), b"\0" * 5120)}, "tensor m.qweight is stored as F32, expected I32"),
        ({"g_idx": ("I32", (256,), b"\7\0\0\0" * 256)}, "tensor m.g_idx names group 7, there are 4"),
        ({"qzeros": ("I32", (4, 5), b"\xff" * 80)}, "tensor m.qzeros has a zero point 16"),
    ],
)
def test_parts_that_do_not_go_together_are_named(change: dict[str, Stored | None], text: str) -> None:
    parts = writer.gptq(random_int4(40, 256, 64, symmetric=True, seed=1))
    for suffix, part in change.items():
        if part is None:
            del parts[suffix]
        else:
            parts[suffix] = part
    with pytest.raises(SetupError, match=text):
        GptqReader("m", arrays(parts), "gptq")


def test_groups_that_do_not_divide_the_columns_are_named() -> None:
    parts = writer.pack_quantized(random_int4(8, 64, 32, symmetric=True, seed=1), symmetric=True)
    parts["weight_scale"] = writer.stored("BF16", np.ones((8, 3)))
    with pytest.raises(SetupError, match="has 3 groups, which do not divide 64 columns"):
        PackQuantizedReader("m", arrays(parts))
    parts["weight_shape"] = writer.stored("I64", np.array([8, 72]))
    with pytest.raises(SetupError, match=r"weight_packed is \[8, 8\], expected \[8, 9\]"):
        PackQuantizedReader("m", arrays(parts))
