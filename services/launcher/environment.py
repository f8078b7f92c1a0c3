"""The virtual environment: is it what constraints.txt asks for, and if not, make it so. Owns .venv and its stamp.

The stamp (interpreter plus a digest per package group) is written last, so an environment without a fitting stamp is
never used. A marker file says that work is under way: after a kill, a new environment is deleted and made again, an
older one is repaired in place. One process works at a time; the others wait on a lock on the parent folder.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.console import Reporter, format_bytes
from launcher.errors import LauncherError
from launcher.pip_run import PipJob, run_pip
from launcher.settings import LauncherSettings

Group = Literal["run", "dev"]

STAMP_NAME = "soloist-stamp.json"
MARKER_NAME = "soloist-work-in-progress"
STAMP_VERSION = 1
INSTALL_BYTES_MIN = 2_500_000_000
PYTHON_MIN = (3, 11)
_NEW = "new"
_UPDATE = "update"


@dataclass(frozen=True, slots=True)
class InstallTools:
    """Commands that make an environment; tests replace them. pip runs inside the environment when None."""

    make_venv: tuple[str, ...]
    pip: tuple[str, ...] | None = None
    bytes_min: int = INSTALL_BYTES_MIN


def default_tools() -> InstallTools:
    """venv and pip of the Python that runs this (or that its own environment was made from)."""
    python: str = getattr(sys, "_base_executable", sys.executable)
    return InstallTools(make_venv=(python, "-m", "venv"))


class Environment:
    """One virtual environment folder and the two files that say what belongs into it."""

    def __init__(self, settings: LauncherSettings, tools: InstallTools) -> None:
        self._settings = settings
        self._tools = tools
        self._folder = settings.venv
        self._stamp_path = settings.venv / STAMP_NAME
        self._marker_path = settings.venv / MARKER_NAME

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self._folder / "bin" / "python"

    def is_ready(self, groups: Sequence[Group]) -> bool:
        """Whether every group's packages are in place as constraints.txt has them now; costs a few milliseconds."""
        stamp = self._read_stamp()
        if stamp is None or self._marker_path.exists() or stamp.get("interpreter") != self._interpreter():
            return False
        installed = stamp.get("groups")
        return isinstance(installed, dict) and all(installed.get(group) == self._digest(group) for group in groups)

    def exists(self) -> bool:
        """Whether there is anything at its path."""
        return self._folder.exists()

    def ensure(self, groups: Sequence[Group], reporter: Reporter) -> None:
        """Make the environment fit, which takes minutes the first time and nothing afterwards.

        Raises: LauncherError with the cause; then no usable-looking environment is left.
        """
        if self.is_ready(groups):
            return
        with self._lock(reporter):
            if self.is_ready(groups):
                return  # somebody else did it while we waited
            self._clear_unusable()
            is_new = not self._folder.exists()
            try:
                if is_new:
                    self._create(reporter)
                else:
                    self._prepare_update(reporter)
                self._install(groups, reporter)
            except BaseException as error:
                if is_new:
                    reporter.status("removing the unfinished environment")
                    self._remove()
                elif isinstance(error, LauncherError):
                    self._marker_path.unlink(missing_ok=True)  # pip put back what it had taken out
                raise

    def _create(self, reporter: Reporter) -> None:
        self._check_space()
        if importlib.util.find_spec("ensurepip") is None:
            raise LauncherError(
                f"this Python cannot make virtual environments: install python{sys.version_info.major}."
                f"{sys.version_info.minor}-venv (Debian, Ubuntu) or use another Python"
            )
        reporter.line(f"first use: making the virtual environment {self._folder}")
        self._folder.mkdir(parents=True)
        self._marker_path.write_text(_NEW, encoding="ascii")
        self._run("making the environment", (*self._tools.make_venv, str(self._folder)), reporter)

    def _prepare_update(self, reporter: Reporter) -> None:
        reporter.line(f"bringing the virtual environment {self._folder} up to date")
        if self._marker_path.exists():
            self._drop_torn_packages()
        self._marker_path.write_text(_UPDATE, encoding="ascii")

    def _install(self, groups: Sequence[Group], reporter: Reporter) -> None:
        stamp = self._read_stamp() or {}
        self._stamp_path.unlink(missing_ok=True)
        names = read_names(self._settings.root)
        wanted = dict.fromkeys(name for group in ("run", *groups) for name in names[group])
        pip = self._tools.pip or (str(self.python), "-m", "pip")
        flags = ("--progress-bar", "off", "--no-input", "--disable-pip-version-check")
        command = (*pip, "install", *flags, "-c", str(self._constraints), *wanted)
        self._run("installing packages", command, reporter)
        before = stamp.get("groups")
        installed = dict(before) if isinstance(before, dict) else {}
        installed |= {group: self._digest(group) for group in ("run", *groups)}
        self._write_stamp(installed)
        self._marker_path.unlink()

    def _run(self, label: str, command: Sequence[str], reporter: Reporter) -> None:
        environ = {name: value for name, value in self._settings.inherited.items() if name != "PYTHONPATH"}
        log_path = self._settings.run_folder / "install.log"
        run_pip(PipJob(label, command, environ, self._settings.root, log_path, self._count), reporter)

    def _clear_unusable(self) -> None:
        """Remove what an interrupted first use left or what lost its base Python; refuse what is not ours to remove."""
        if not self._folder.exists():
            return
        stamp = self._read_stamp()
        marker = self._marker_path.read_text(encoding="ascii") if self._marker_path.exists() else ""
        was_replaced = stamp is not None and stamp.get("interpreter") != self._interpreter()
        if marker == _NEW or was_replaced or not any(self._folder.iterdir()):
            self._remove()
            return
        version = _read_version(self._folder / "pyvenv.cfg")
        if version is None:
            raise LauncherError(f"{self._folder} is not a virtual environment: move it away or set SOLOIST_VENV")
        if self._interpreter() is None or version < PYTHON_MIN:
            made_with = ".".join(map(str, version))
            raise LauncherError(f"{self._folder} was made with Python {made_with}, which is gone or too old: delete it")

    def _remove(self) -> None:
        """Delete the folder, the marker last: a removal that is cut off goes on at the next use."""
        if not self._folder.exists():
            return
        self._marker_path.write_text(_NEW, encoding="ascii")
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != self._marker_path:
                path.unlink()
        shutil.rmtree(self._folder)

    def _check_space(self) -> None:
        folder = next(parent for parent in self._folder.parents if parent.exists())
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < self._tools.bytes_min:
            raise LauncherError(
                f"the virtual environment needs {format_bytes(self._tools.bytes_min)}, {folder} has "
                f"{format_bytes(free_bytes)} free: make room or set SOLOIST_VENV"
            )

    @contextlib.contextmanager
    def _lock(self, reporter: Reporter) -> Iterator[None]:
        parent = self._folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(parent, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reporter.status("waiting for another ./soloist that is installing")
                fcntl.flock(lock_fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock_fd)

    def _interpreter(self) -> str | None:
        try:
            return str(self.python.resolve(strict=True))
        except OSError:
            return None

    @property
    def _constraints(self) -> Path:
        return self._settings.root / "constraints.txt"

    def _digest(self, group: Group) -> str:
        digest = hashlib.sha256(self._constraints.read_bytes())
        digest.update("\n".join(read_names(self._settings.root)[group]).encode())
        return digest.hexdigest()

    def _site_packages(self) -> list[Path]:
        return sorted(self._folder.glob("lib/python3*/site-packages"))

    def _count(self) -> int:
        return sum(1 for site in self._site_packages() for _ in site.glob("*.dist-info"))

    def _drop_torn_packages(self) -> None:
        """Forget packages whose installation was cut off, so that pip installs them again."""
        for site in self._site_packages():
            for info in site.glob("*.dist-info"):
                if not (info / "RECORD").exists():
                    shutil.rmtree(info)

    def _read_stamp(self) -> dict[str, object] | None:
        try:
            stamp = json.loads(self._stamp_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return stamp if isinstance(stamp, dict) and stamp.get("version") == STAMP_VERSION else None

    def _write_stamp(self, groups: dict[str, str]) -> None:
        stamp = {"version": STAMP_VERSION, "interpreter": self._interpreter(), "groups": groups}
        partial = self._stamp_path.with_suffix(".partial")
        partial.write_text(json.dumps(stamp) + "\n", encoding="utf-8")
        partial.replace(self._stamp_path)


def read_names(root: Path) -> dict[Group, list[str]]:
    """Package names per group as pyproject.toml has them."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"run": project["dependencies"], "dev": project["optional-dependencies"]["dev"]}


def _read_version(config: Path) -> tuple[int, int] | None:
    try:
        text = config.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^version\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None
