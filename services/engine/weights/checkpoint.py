"""Where weights come from when the engine starts: something that knows every matrix's form and fills the regions.

Owns the protocol that reserve_weights and load_weights take, and the choice of its kind for a model folder.
"""

from collections.abc import Mapping
from typing import Protocol

from contracts.model_folder import ARTIFACT_DIRECTORY_NAME
from engine.model_home import ModelFolder
from engine.spec import ModelSpec
from engine.weights.artifact import Artifact, read_directory
from engine.weights.fill import Progress, RegionSink
from engine.weights.forms import MatrixForm
from engine.weights.gguf_file import GgufFile
from engine.weights.need import DecoderNeed
from engine.weights.stored import stored_gguf


class Checkpoint(Protocol):
    """A model's weights, mapped and not yet read."""

    def forms(self, spec: ModelSpec, need: DecoderNeed) -> Mapping[str, MatrixForm]:
        """The form of every matrix of the need, by region.

        Raises: SetupError when the source does not hold the spec's weights.
        """
        ...

    def fill(self, spec: ModelSpec, need: DecoderNeed, sink: RegionSink, on_progress: Progress) -> None:
        """Put every region's rows; on_progress(done_bytes, total_bytes) in bytes of the source.

        Raises: SetupError naming the tensor or region whose values are not finite.
        """
        ...


def open_weights(folder: ModelFolder) -> Checkpoint:
    """The weights of a model folder.

    Raises: SetupError when the folder's files do not belong together.
    """
    if folder.holds_artifact:
        return Artifact(folder.weights_path, read_directory(folder.path / ARTIFACT_DIRECTORY_NAME))
    return stored_gguf(GgufFile(folder.weights_path, folder.read_tensor_directory()))
