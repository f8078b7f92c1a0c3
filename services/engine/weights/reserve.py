"""Which regions of the memory plan the weights take. Owns names, shapes and dtypes of regions; moves no byte, no torch.

binding.load_weights fills exactly the regions listed here, so planned and bound bytes are equal by construction.
"""

from contracts.errors import SetupError
from engine.memory.layout import DType, LayoutBuilder
from engine.spec import ModelSpec
from engine.weights.checkpoint import Checkpoint, StorageKind
from engine.weights.schema import MatrixNeed, check_checkpoint, decoder_need

_WORD_BITS = 32


def reserve_weights(spec: ModelSpec, checkpoint: Checkpoint, builder: LayoutBuilder) -> None:
    """Check the checkpoint against the spec and reserve every region of its weights.

    Quantised matrices stay packed (QuantizedMatrix); matrices stored as floating point become fp32 (DenseMatrix).
    Raises: SetupError naming the tensors that do not fit the spec.
    """
    need = decoder_need(spec)
    check_checkpoint(spec, need, checkpoint)
    for matrix in need.matrices():
        for suffix, shape, dtype in matrix_regions(matrix, packed_kind(matrix, checkpoint)):
            builder.reserve(f"{matrix.region}.{suffix}", shape, dtype)
    for vector in need.vectors():
        builder.reserve(vector.region, (vector.length,), "fp32")


def packed_kind(need: MatrixNeed, checkpoint: Checkpoint) -> StorageKind | None:
    """The kind whose codes and scales a packed matrix keeps, None for one stored as floating point.

    Raises: SetupError when parts that are stacked into one packed matrix are stored differently.
    """
    kinds = {part.tensor: checkpoint.kind(part.tensor) for part in need.parts}
    first = next(iter(kinds.values()))
    if all(kind.bits is None for kind in kinds.values()):
        return None
    if any(kind != first for kind in kinds.values()):
        listed = ", ".join(f"{name} as {kind.name}" for name, kind in kinds.items())
        raise SetupError(f"{checkpoint.path}: {need.region} stacks parts that are stored differently: {listed}")
    return first


def matrix_regions(need: MatrixNeed, kind: StorageKind | None) -> list[tuple[str, tuple[int, ...], DType]]:
    """(suffix, shape, dtype) of each region of one matrix; kind as packed_kind gives it."""
    num_rows, num_cols = need.num_rows, need.num_cols
    if kind is None:
        return [("weight", (num_rows, num_cols), "fp32")]
    assert kind.bits is not None
    groups = (num_cols // kind.block_elements, num_rows)
    regions: list[tuple[str, tuple[int, ...], DType]] = [
        ("codes", (num_rows, num_cols * kind.bits // _WORD_BITS), "int32"),
        ("scales", groups, "fp16"),
    ]
    if kind.has_minimum:
        regions.append(("minima", groups, "fp16"))
    return regions
