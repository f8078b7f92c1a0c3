"""Which regions of the memory plan the weights take. Owns their order; moves no byte, imports no torch.

binding.load_weights fills exactly the regions listed here, so planned and bound bytes are equal by construction.
"""

from collections.abc import Mapping

from contracts.errors import SetupError
from engine.memory.layout import LayoutBuilder
from engine.spec import ModelSpec
from engine.weights.checkpoint import Checkpoint
from engine.weights.forms import MatrixForm, matrix_regions
from engine.weights.need import DecoderNeed
from engine.weights.schema import decoder_need

EMBEDDING_REGION = "weights.embedding"


def reserve_weights(
    spec: ModelSpec, checkpoint: Checkpoint, builder: LayoutBuilder, embedding_builder: LayoutBuilder | None = None
) -> None:
    """Check the checkpoint against the spec and reserve every region of its weights.

    embedding_builder takes the embedding's regions instead, where it shall lie elsewhere (in host memory).
    Raises: SetupError naming what does not fit the spec, or when an embedding that is the head too is to lie elsewhere.
    """
    need = decoder_need(spec)
    reserve_regions(spec, need, checkpoint.forms(spec, need), builder, embedding_builder)


def reserve_regions(
    spec: ModelSpec,
    need: DecoderNeed,
    forms: Mapping[str, MatrixForm],
    builder: LayoutBuilder,
    embedding_builder: LayoutBuilder | None = None,
) -> None:
    """Reserve the regions that the forms take; see reserve_weights."""
    if embedding_builder is not None and spec.tied_embedding:
        raise SetupError(f"{spec.name} uses its embedding as head: it cannot lie apart from the other weights")
    for matrix in need.matrices():
        apart = embedding_builder is not None and matrix.region == EMBEDDING_REGION
        target = embedding_builder if embedding_builder is not None and apart else builder
        for region in matrix_regions(matrix, forms[matrix.region]):
            target.reserve(region.name, region.shape, region.dtype)
    for vector in need.vectors():
        builder.reserve(vector.region, vector.shape, "fp32")
