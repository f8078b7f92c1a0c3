"""Where Soloist keeps what it writes: the home folder, chosen by the environment. Owns the rule, creates nothing.

Standard library only: the launcher imports this before any package is installed.
"""

from collections.abc import Mapping
from pathlib import Path


def resolve_home(environ: Mapping[str, str]) -> Path:
    """SOLOIST_HOME, else XDG_CACHE_HOME/soloist, else ~/.cache/soloist; absolute, an empty variable counts as unset."""
    chosen = environ.get("SOLOIST_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache and Path(cache).is_absolute() else Path("~/.cache").expanduser()
    return base / "soloist"
