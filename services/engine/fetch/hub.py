"""A checkpoint from the Hugging Face hub, on disk. Owns the download's folder, its progress and what failures mean.

The folder stays when a download is interrupted: the next one completes it.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import SetupError
from engine.fetch.child import NO_NETWORK, run_child
from engine.progress import ProgressLine
from engine.registry import HubSource

_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def download_checkpoint(
    source: HubSource, folder: Path, environ: Mapping[str, str], progress: ProgressLine, artifact_bytes: int
) -> None:
    """Complete the folder with every file that a conversion needs.

    artifact_bytes is what the conversion will write beside it.
    Raises: SetupError with the reason in one line, and what is needed.
    """
    folder.mkdir(exist_ok=True)
    needed = max(0, source.download_bytes - _bytes_below(folder)) + artifact_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SetupError(f"{source.repository} needs {needed} bytes below {folder.parent}, {free} are free")
    step = f"downloading {source.repository}"
    progress.show(step, 0, source.download_bytes)
    code, output = run_child(
        [sys.executable, "-m", "engine.fetch.hub_child", source.repository, str(folder)],
        {**environ, **_QUIET},
        lambda: progress.show(step, min(_bytes_below(folder), source.download_bytes - 1), source.download_bytes),
    )
    if code != 0:
        raise SetupError(_explain(source, code, output, artifact_bytes))
    progress.show(step, source.download_bytes, source.download_bytes)


def _explain(source: HubSource, code: int, output: str, artifact_bytes: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no reason given"]
    if code != NO_NETWORK:
        return f"cannot download {source.repository}: {lines[-1]}"
    disk_bytes = source.download_bytes + artifact_bytes
    return (
        f"no network: the checkpoint {source.repository} on the Hugging Face hub could not be reached ({lines[-1]}); "
        f"it is a download of {source.download_bytes / 1e9:.1f} GB and takes {disk_bytes / 1e9:.1f} GB of disk until "
        "it is converted. A checkpoint that is on a disk already: ./soloist convert FOLDER --out MODEL_FOLDER"
    )


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # moved or removed meanwhile
                continue
    return total
