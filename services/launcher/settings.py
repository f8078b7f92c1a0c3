"""What the launcher takes from its environment, once: home, virtual environment, Redis, colours, and what children get.

The only launcher file that reads the environment. Standard library only, hence not contracts.settings.load; the rule
is the same: an unknown SOLOIST_* variable is an error.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.home import resolve_home
from launcher.errors import EXIT_REFUSED, LauncherError

_KNOWN = ("SOLOIST_HOME", "SOLOIST_VENV")


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """Paths, the Redis address given by the user, and the environment that children inherit."""

    root: Path
    home: Path
    venv: Path
    redis_url: str | None
    color: bool
    inherited: Mapping[str, str]

    @property
    def run_folder(self) -> Path:
        """Where the state file, the lock and the log of a running stack live."""
        return self.home / "run"


def load_settings(root: Path, environ: Mapping[str, str] | None = None) -> LauncherSettings:
    """Read the process environment (or the given one).

    Raises: LauncherError for an unknown SOLOIST_* variable.
    """
    given = dict(os.environ if environ is None else environ)
    for name in given:
        if name.startswith("SOLOIST_") and name not in _KNOWN:
            raise LauncherError(f"unknown setting {name}; known are {', '.join(_KNOWN)}", exit_code=EXIT_REFUSED)
    venv = given.get("SOLOIST_VENV")
    return LauncherSettings(
        root=root,
        home=resolve_home(given),
        venv=Path(venv).expanduser().absolute() if venv else root / ".venv",
        redis_url=given.get("REDIS_URL") or None,
        color=not given.get("NO_COLOR"),
        inherited=given,
    )


def child_environment(settings: LauncherSettings, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The inherited environment for a program of ours: services on the path, unbuffered output, plus extra."""
    services = str(settings.root / "services")
    inherited = settings.inherited.get("PYTHONPATH")
    environ = dict(settings.inherited)
    environ["PYTHONPATH"] = f"{services}{os.pathsep}{inherited}" if inherited else services
    environ["PYTHONUNBUFFERED"] = "1"
    environ["SOLOIST_HOME"] = str(settings.home)
    environ.update(extra or {})
    return environ
