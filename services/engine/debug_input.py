"""What `python -m engine.debug` computes on: a checkpoint of any kind this version reads, ids, images. Owns opening it.

A checkpoint is a folder in the public layout, a GGUF file, or a model folder, converted or fetched. Codes of foreign
kinds become the numbers they stand for; nothing is quantised here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from contracts.errors import SetupError
from contracts.model_folder import ARTIFACT_DIRECTORY_NAME, MANIFEST_NAME
from engine.convert.gguf_input import open_gguf
from engine.hf_config import CONFIG_NAME, read_config
from engine.model.positions import PlacedImage, prompt_positions
from engine.model.vision_rows import VisionRows
from engine.model_home import read_folder
from engine.registry import lookup
from engine.spec import ModelSpec
from engine.weights.artifact import read_directory
from engine.weights.centres import KvCentres, read_centres
from engine.weights.check import check_source
from engine.weights.checkpoint import Checkpoint, open_weights
from engine.weights.fill import Progress, RegionSink, fill_matrix, fill_vector
from engine.weights.forms import DenseForm, MatrixForm
from engine.weights.hf_source import HfSource
from engine.weights.need import DecoderNeed
from engine.weights.safetensors import SafetensorsFolder
from engine.weights.tensor_source import TensorSource

_MERGE = 2  # patches of an image become one token two by two


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model to compute with; centres are None where the checkpoint has none."""

    spec: ModelSpec
    checkpoint: Checkpoint
    centres: KvCentres | None


class Numbers:
    """A Checkpoint of a foreign source: every matrix as numbers, in the precision that holds them."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source

    def forms(self, spec: ModelSpec, need: DecoderNeed) -> Mapping[str, MatrixForm]:
        """See Checkpoint."""
        check_source(spec, need, self._source)
        tensors = self._source.tensors
        return {
            matrix.region: DenseForm(
                "bf16" if all(tensors[part.tensor].precision == "bf16" for part in matrix.parts) else "fp32"
            )
            for matrix in need.matrices()
        }

    def fill(self, spec: ModelSpec, need: DecoderNeed, sink: RegionSink, on_progress: Progress) -> None:
        """See Checkpoint."""
        forms = self.forms(spec, need)
        total = len(forms)
        for done, matrix in enumerate(need.matrices(), start=1):
            fill_matrix(matrix, forms[matrix.region], self._source, sink)
            self._source.release()
            on_progress(done, total)
        for vector in need.vectors():
            fill_vector(vector, self._source, sink)


def open_subject(path: Path) -> Subject:
    """Open a checkpoint; headers are read, no tensor is.

    Raises: SetupError saying what the path lacks or why it is not supported.
    """
    name = path.stem if path.suffix == ".gguf" else path.name
    if path.is_file():
        opened = open_gguf(path, name)
        return Subject(opened.spec, Numbers(opened.source), None)
    if (path / MANIFEST_NAME).is_file():
        folder = read_folder(path)
        directory = read_directory(path / ARTIFACT_DIRECTORY_NAME) if folder.holds_artifact else None
        spec = lookup(folder.manifest.name).spec if directory is None else directory.spec
        return Subject(spec, open_weights(folder), read_centres(folder, spec))
    if (path / CONFIG_NAME).is_file():
        config = read_config(path, name)
        return Subject(config.spec, Numbers(HfSource(config, SafetensorsFolder(path))), None)
    raise SetupError(f"{path} has neither {MANIFEST_NAME} nor {CONFIG_NAME} and is no file")


def read_ids(path: Path, spec: ModelSpec) -> NDArray[np.int64]:
    """A JSON list of token ids.

    Raises: SetupError for an empty or malformed list, and for an id or a length beyond the model's.
    """
    try:
        values = msgspec.json.decode(path.read_bytes(), type=list[int])
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{path} cannot be read as a JSON list of token ids: {error}") from error
    if not 0 < len(values) <= spec.context_limit:
        raise SetupError(f"{path} has {len(values)} ids, {spec.name} takes 1 to {spec.context_limit}")
    for index, value in enumerate(values):
        if not 0 <= value < spec.vocab_size:
            raise SetupError(f"{path}: id {value} at index {index}, {spec.name} has {spec.vocab_size} rows")
    return np.array(values, dtype=np.int64)


def read_images(path: Path, num_tokens: int, hidden_size: int) -> VisionRows:
    """An .npz of offsets [n], grids [n, 3] (time, height, width in patches) and rows [tokens of all images, C] fp32.

    Raises: SetupError when the arrays do not fit each other, the prompt or the model.
    """
    offsets, grids, rows = _read_arrays(path)
    if offsets.ndim != 1 or grids.shape != (len(offsets), 3) or not _are_grids(grids):
        raise SetupError(f"{path}: grids {grids.tolist()} of {offsets.size} offsets, expected [1, even, even] for each")
    images = [
        PlacedImage(int(offset), int(grid[1]) // _MERGE, int(grid[2]) // _MERGE)
        for offset, grid in zip(offsets, grids, strict=True)
    ]
    end = 0
    for image in images:
        if image.offset < end or image.offset + image.num_tokens > num_tokens:
            raise SetupError(f"{path}: an image of {image.num_tokens} tokens at {image.offset} does not fit the ids")
        end = image.offset + image.num_tokens
    expected = (sum(image.num_tokens for image in images), hidden_size)
    if rows.shape != expected or not np.isfinite(rows).all():
        raise SetupError(f"{path}: rows are {list(rows.shape)}, expected {list(expected)}, all of them finite")
    columns = [np.arange(image.offset, image.offset + image.num_tokens) for image in images]
    where = np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)
    return VisionRows(where, rows, prompt_positions(num_tokens, images))


def _read_arrays(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    try:
        with np.load(path) as arrays:
            found = {name: np.asarray(arrays[name]) for name in ("offsets", "grids", "rows")}
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise SetupError(f"{path} is no .npz with offsets, grids and rows: {error}") from error
    return found["offsets"].astype(np.int64), found["grids"].astype(np.int64), found["rows"].astype(np.float32)


def _are_grids(grids: NDArray[np.int64]) -> bool:
    """Whether all [n, 3] are one frame of whole merged patches."""
    sides = grids[:, 1:]
    return bool((grids[:, 0] == 1).all() and (sides > 0).all() and (sides % _MERGE == 0).all())
