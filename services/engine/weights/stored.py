"""A checkpoint's weights kept as they are stored, with no artifact in between. Owns the choice of form per matrix."""

from collections.abc import Callable, Mapping

from contracts.errors import SetupError
from engine.spec import ModelSpec
from engine.weights.check import check_source
from engine.weights.fill import Progress, RegionSink, fill_matrix, fill_vector
from engine.weights.forms import DenseDType, DenseForm, MatrixForm
from engine.weights.gguf_file import GgufFile
from engine.weights.gguf_source import GgufSource
from engine.weights.need import DecoderNeed, MatrixNeed
from engine.weights.tensor_source import TensorSource


class StoredWeights:
    """A checkpoint's weights as they are stored: codes stay codes, numbers stay bf16 or become fp32.

    open_source reads the checkpoint as one of the spec's family.
    """

    def __init__(self, open_source: Callable[[ModelSpec], TensorSource]) -> None:
        self._open_source = open_source

    def forms(self, spec: ModelSpec, need: DecoderNeed) -> Mapping[str, MatrixForm]:
        """See Checkpoint; parts that are stacked into one matrix must be stored alike."""
        source = self._open_source(spec)
        check_source(spec, need, source)
        return {matrix.region: stored_form(matrix, source) for matrix in need.matrices()}

    def fill(self, spec: ModelSpec, need: DecoderNeed, sink: RegionSink, on_progress: Progress) -> None:
        """See Checkpoint."""
        source, forms = self._open_source(spec), self.forms(spec, need)
        tensors = source.tensors
        done_bytes, total_bytes = 0, sum(stored.num_bytes for stored in tensors.values())
        for matrix in need.matrices():
            fill_matrix(matrix, forms[matrix.region], source, sink)
            source.release()
            done_bytes += sum(tensors[part.tensor].num_bytes for part in matrix.parts)
            on_progress(done_bytes, total_bytes)
        for vector in need.vectors():
            fill_vector(vector, source, sink)
            done_bytes += tensors[vector.tensor].num_bytes
            on_progress(done_bytes, total_bytes)


def stored_form(need: MatrixNeed, source: TensorSource) -> MatrixForm:
    """The form that keeps a matrix as its source has it.

    Raises: SetupError when some of its parts are codes that the others do not match.
    """
    parts = [source.tensors[part.tensor] for part in need.parts]
    packed = parts[0].packed
    if packed is not None and all(part.packed == packed for part in parts):
        return packed
    if any(part.packed is not None for part in parts):
        listed = ", ".join(f"{part.spelling} as {part.kind}" for part in parts)
        raise SetupError(f"{source.path}: {need.region} stacks parts that are stored differently: {listed}")
    return DenseForm(dense_dtype(need, source))


def dense_dtype(need: MatrixNeed, source: TensorSource) -> DenseDType:
    """The dtype that holds a matrix's numbers without loss."""
    parts = [source.tensors[part.tensor] for part in need.parts]
    return "bf16" if all(part.precision == "bf16" for part in parts) else "fp32"


def stored_gguf(file: GgufFile) -> StoredWeights:
    """The weights of a GGUF file as they are stored there."""

    def open_source(spec: ModelSpec) -> TensorSource:
        return GgufSource(spec, file)

    return StoredWeights(open_source)
