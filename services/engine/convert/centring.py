"""Centring the KV cache of a finished artifact, in a process of its own: it computes with torch, a conversion does not.

Owns when it is done, and what is said when it could not be: a model works without, but rotated KV formats lose by it.
"""

import subprocess
import sys

from contracts.model_folder import CENTRES_NAME
from engine.model_home import ModelFolder, read_folder
from engine.ops.kv_layout import is_rotated
from engine.progress import ProgressLine
from engine.spec import ModelSpec


class NotCentred(Exception):
    """The calibration did not succeed; its reason is on stderr."""

    def __init__(self, folder: ModelFolder) -> None:
        command = f"python -m engine.calibrate {folder.path}"
        super().__init__(
            f"{folder.manifest.name} is in {folder.path}, its KV cache is not centred; to try again: {command}"
        )


def needs_centres(folder: ModelFolder, spec: ModelSpec) -> bool:
    """Whether the model keeps its KV cache in a format that is centred, and has no centres yet."""
    return is_rotated(spec.default_kv_format) and not is_centred(folder)


def is_centred(folder: ModelFolder) -> bool:
    """Whether the folder has centres."""
    return CENTRES_NAME in folder.manifest.files


def centre(folder: ModelFolder, progress: ProgressLine) -> ModelFolder:
    """Run the calibration; it writes to this process's stderr.

    Raises: NotCentred when it fails; KeyboardInterrupt passes.
    """
    progress.note("calibrating the KV cache")
    progress.close()
    done = subprocess.run([sys.executable, "-m", "engine.calibrate", str(folder.path)], check=False)
    if done.returncode:
        raise NotCentred(folder)
    return read_folder(folder.path)
