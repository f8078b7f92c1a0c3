"""`python -m engine.calibrate DIR`: centre the KV cache of a converted model. Owns arguments and exit codes.

Writes kv_centres.safetensors into the model folder. Exit codes: 0 done, 1 it could not be written or was interrupted,
2 refused.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from contracts.errors import SetupError
from contracts.model_folder import ARTIFACT_DIRECTORY_NAME
from engine.calibrate.centres import measure_centres
from engine.calibrate.text import file_windows, library_windows
from engine.machine import usable_cpus
from engine.model.decoder import require_runnable
from engine.model_home import ModelFolder, read_folder
from engine.unwind import unwind_on_signals
from engine.weights.artifact import Artifact, read_directory
from engine.weights.centres import write_centres

OK, FAILED, REFUSED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="engine.calibrate", description="Centre a converted model's KV cache.")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a model folder that convert made")
    parser.add_argument("--text", metavar="FILE", type=Path, help="UTF-8 text to measure on (Python's own library)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(usable_cpus().value)
    try:
        folder = _calibrate(options.folder.absolute(), options.text)
    except SetupError as error:
        return _end(REFUSED, error.message)
    except OSError as error:
        return _end(FAILED, f"cannot write centres into {options.folder}: {error.strerror or error}")
    except KeyboardInterrupt:
        return _end(FAILED, "calibration was interrupted; the model works without, its KV cache is not centred")
    return _end(OK, f"{folder.manifest.name} is calibrated")


def _calibrate(path: Path, text: Path | None) -> ModelFolder:
    folder = read_folder(path)
    if not folder.holds_artifact:
        raise SetupError(f"{path} holds {folder.weights_path.name} as it was downloaded; convert it first")
    directory = read_directory(path / ARTIFACT_DIRECTORY_NAME)
    require_runnable(directory.spec)
    windows = library_windows(folder) if text is None else file_windows(folder, text)
    artifact = Artifact(folder.weights_path, directory)
    return write_centres(folder, directory.spec, measure_centres(artifact, windows, _report))


def _report(done: int, total: int) -> None:
    if done == total or done % 8 == 0:
        sys.stderr.write(f"calibrating the KV cache: {done} of {total} layers\n")
        sys.stderr.flush()


def _end(code: int, message: str) -> int:
    sys.stderr.write(message + "\n")
    return code


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main(sys.argv[1:]))
