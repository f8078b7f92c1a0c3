"""Files and folders that are on disk, not only in memory, when a call returns. Owns the flushing, no content."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file, or over an old one, and flush it to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
