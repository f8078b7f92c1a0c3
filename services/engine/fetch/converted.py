"""Models that are converted here: from a checkpoint that comes with the program, or one from the hub. Owns the order.

What is downloaded or converted when a fetch is stopped stays, and the next one goes on.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from contracts.errors import SetupError
from engine.convert.centring import NotCentred, centre, needs_centres
from engine.convert.conversion import ConversionJob, convert
from engine.fetch.hub import download_checkpoint
from engine.machine import usable_cpus
from engine.progress import ProgressLine
from engine.registry import BundledSource, HubSource, RegisteredModel
from engine.weights.reserve import recipe_bytes

# Beside services/, wherever that is: the checkout's models/, or /models in the image, whose services are in /app.
MODELS_FOLDER: Final = Path(__file__).resolve().parents[3] / "models"


def convert_bundled(
    model: RegisteredModel, source: BundledSource, final: Path, progress: ProgressLine, bundled: Path = MODELS_FOLDER
) -> None:
    """Make the model folder `final` from the checkpoint in `bundled`.

    Raises: SetupError when it is not there or does not convert.
    """
    folder = bundled / source.folder
    if not folder.is_dir():
        raise SetupError(f"{model.spec.name} comes with the program in {folder}, which is not there")
    _convert(model, folder, final, progress)


def convert_from_hub(
    model: RegisteredModel, source: HubSource, final: Path, environ: Mapping[str, str], progress: ProgressLine
) -> None:
    """Make the model folder `final` from a checkpoint of the hub; the download is removed when it is converted.

    Raises: SetupError with the reason in one line, and what is needed.
    """
    folder = final.parent / f".download-{model.spec.name}"
    download_checkpoint(source, folder, environ, progress, recipe_bytes(model.spec, model.recipe))
    _convert(model, folder, final, progress)
    shutil.rmtree(folder, ignore_errors=True)


def _convert(model: RegisteredModel, folder: Path, final: Path, progress: ProgressLine) -> None:
    if final.exists():
        shutil.rmtree(final)
    made = convert(ConversionJob(folder, final, model.spec.name, model.recipe, usable_cpus().value), progress)
    if needs_centres(made, model.spec):
        try:
            centre(made, progress)
        except NotCentred as error:
            progress.note(str(error))
