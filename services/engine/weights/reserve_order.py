"""The order in which weights lie, in an arena and in an artifact: every matrix's regions, then every vector. Owns it.

No torch, no file.
"""

from collections.abc import Mapping

from contracts.errors import SetupError
from engine.memory.layout import LayoutBuilder
from engine.spec import ModelSpec
from engine.weights.forms import MatrixForm, matrix_regions
from engine.weights.need import DecoderNeed

EMBEDDING_REGION = "weights.embedding"


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
