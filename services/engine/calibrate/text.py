"""Text to calibrate with, as token ids: parts of Python's own library, or a file of the user's. Owns the choice.

The library is on every machine that runs this, its licence permits it, and code with prose in it is what agents send.
"""

import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from contracts.errors import SetupError
from contracts.model_folder import TOKENIZER_NAME
from engine.model_home import ModelFolder

WINDOW_TOKENS: Final = 512
NUM_WINDOWS: Final = 8
_MODULES = (
    "ast", "configparser", "subprocess", "shutil", "logging/__init__", "textwrap", "unittest/case", "email/header",
)  # fmt: skip
_SKIPPED_CHARACTERS = 1500  # licence headers and the like, which are not typical text

Ids = NDArray[np.int64]


def library_windows(folder: ModelFolder) -> list[Ids]:
    """WINDOW_TOKENS token ids of each of NUM_WINDOWS modules.

    Raises: SetupError when the tokenizer or a module cannot be read.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    tokenizer = _tokenizer(folder)
    texts = [_read(library / f"{name}.py")[_SKIPPED_CHARACTERS:] for name in _MODULES]
    return [window for text in texts for window in _windows(tokenizer, text, 1)]


def file_windows(folder: ModelFolder, path: Path) -> list[Ids]:
    """Up to NUM_WINDOWS windows from the start of a UTF-8 file.

    Raises: SetupError when it cannot be read or is shorter than one window.
    """
    windows = _windows(_tokenizer(folder), _read(path), NUM_WINDOWS)
    if not windows:
        raise SetupError(f"{path} has fewer than {WINDOW_TOKENS} tokens, which is one window")
    return windows


def _windows(tokenizer: Tokenizer, text: str, most: int) -> list[Ids]:
    """Whole windows of a text."""
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
    count = min(most, len(ids) // WINDOW_TOKENS)
    return list(ids[: count * WINDOW_TOKENS].reshape(count, WINDOW_TOKENS))


def _tokenizer(folder: ModelFolder) -> Tokenizer:
    path = folder.path / TOKENIZER_NAME
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise SetupError(f"{path} cannot be read: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} cannot be read as UTF-8 text: {error}") from error
