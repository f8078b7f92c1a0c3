"""The verb `doctor`: can the stack start here, and if not, what to do. Owns the checks; changes and installs nothing.

Works before the virtual environment exists, because making it is one of the things that can fail.
"""

import dataclasses
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.console import Console, format_bytes
from launcher.control import look
from launcher.environment import INSTALL_BYTES_MIN, Environment
from launcher.errors import EXIT_FAILED, LauncherError
from launcher.health import hide_password, probe_redis_url
from launcher.home_check import find_home_problem
from launcher.ports import LOOPBACK, find_port_problem
from launcher.programs import Programs, find_embedded_valkey
from launcher.settings import LauncherSettings, child_environment
from launcher.stack_plan import UpOptions, choose_model, choose_port, find_given_redis

HOME_BYTES_MIN = 500_000_000
MEMORY_BYTES_MIN = 1_000_000_000
_TOOL_TIMEOUT_S = 20.0
CPU_BUILD_HINT = (
    "without an NVIDIA GPU a CPU build of torch is enough: name its place in pip's own configuration "
    "(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS) before the first use, or pip fetches the CUDA build (5 GB instead of 1.5)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; a problem keeps the stack from starting and has a fix, a note does not."""

    name: str
    level: Literal["ok", "note", "problem"]
    detail: str
    fix: str | None = None


class Doctor:
    """Looks at this machine through the eyes of `up`."""

    def __init__(self, settings: LauncherSettings, programs: Programs, environment: Environment) -> None:
        self._settings = settings
        self._programs = programs
        self._environment = environment
        self._has_packages = environment.is_ready(["run"])
        self._has_home = find_home_problem(settings.home) is None

    def run(self) -> list[Check]:
        """All checks, in the order in which a start needs them."""
        return [
            self._python(),
            self._packages(),
            *self._folders(),
            _memory(),
            _processor(),
            self._gpu(),
            *_docker(),
            self._port(),
            self._model(),
            self._redis(),
        ]

    def _python(self) -> Check:
        return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")

    def _packages(self) -> Check:
        venv = self._settings.venv
        if self._has_packages:
            return Check("packages", "ok", f"{venv} is what constraints.txt asks for")
        if importlib.util.find_spec("ensurepip") is None and not self._environment.exists():
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            fix = f"install python{version}-venv (Debian, Ubuntu) or use another Python"
            return Check("packages", "problem", "this Python cannot make virtual environments", fix)
        if self._environment.exists():
            return Check("packages", "note", f"{venv} is out of date: the next verb that needs it updates it")
        hint = "" if Path("/proc/driver/nvidia").exists() else f"; {CPU_BUILD_HINT}"
        return Check("packages", "note", f"{venv} does not exist yet: the first verb that needs it makes it{hint}")

    def _folders(self) -> Iterator[Check]:
        need_bytes = HOME_BYTES_MIN if self._has_packages else INSTALL_BYTES_MIN
        yield _folder("home", self._settings.home, HOME_BYTES_MIN, setting="SOLOIST_HOME")
        yield _folder("environment", self._settings.venv, need_bytes, setting="SOLOIST_VENV")

    def _gpu(self) -> Check:
        if not self._has_packages:
            found = Path("/proc/driver/nvidia").exists()
            return Check("gpu", "note", "an NVIDIA driver is loaded" if found else "none seen; the CPU is used")
        answer = self._ask((self._programs.python, "-m", "launcher.gpu_probe"))
        if not isinstance(answer, list):
            return Check("gpu", "note", "the driver could not be asked; the CPU is used")
        if not answer:
            return Check("gpu", "ok", "none; the CPU is used")
        cards = ", ".join(f"{card['name']} ({format_bytes(card['memory_bytes'])})" for card in answer)
        return Check("gpu", "ok", f"{cards}, driver {answer[0]['driver']}")

    def _port(self) -> Check:
        if self._has_home and look(self._settings).state != "not running":
            return Check("port", "ok", "held by the Soloist that runs on this home")
        try:
            port = choose_port(UpOptions(), self._settings.inherited)
        except LauncherError as error:
            return Check("port", "problem", error.message, "correct GATEWAY_PORT")
        problem = find_port_problem(self._settings.inherited.get("GATEWAY_HOST") or LOOPBACK, port)
        if problem is not None:
            return Check("port", "problem", problem, "start with --port N, or stop what holds it")
        return Check("port", "ok", f"{port} is free")

    def _model(self) -> Check:
        try:
            model = choose_model(UpOptions(), self._settings.inherited)
        except LauncherError as error:
            return Check("model", "problem", error.message, "unset one of the variables")
        if not self._has_home:
            return Check("model", "note", f"{model}: looked for once SOLOIST_HOME is a folder")
        if not self._has_packages:
            return Check("model", "note", f"{model}: looked for once the packages are installed")
        answer = self._ask((*self._programs.models, "--json"))
        if not isinstance(answer, dict):
            command = " ".join(self._programs.models)
            return Check("model", "problem", "the models cannot be listed", f"see what `{command}` says")
        known = {entry["name"]: entry for entry in answer["models"]}
        if model not in known:
            return Check(
                "model", "problem", f"{model} is unknown; known are {', '.join(known)}", "choose one with --model"
            )
        if known[model]["fault"]:
            return Check("model", "problem", f"{model}: {known[model]['fault']}", f"run ./soloist fetch {model}")
        if known[model].get("present"):
            return Check("model", "ok", f"{model} is in {self._settings.home}")
        return Check("model", "note", f"{model} is not fetched yet: `up` does it, or ./soloist fetch {model}")

    def _redis(self) -> Check:
        try:
            url = find_given_redis(self._settings)
        except LauncherError as error:
            return Check("redis", "problem", error.message, "correct or unset the variable")
        if url:
            probe = probe_redis_url(url)
            if probe.is_ready:
                return Check("redis", "ok", hide_password(url))
            detail = f"{hide_password(url)} does not answer: {probe.message}"
            return Check("redis", "problem", detail, "start that server, or unset the variable to use an embedded one")
        if self._programs.redis is None:
            if not self._has_packages:
                return Check("redis", "note", "an embedded Valkey comes with the packages")
            return Check("redis", "problem", "no server for this platform", "install redis-server or set REDIS_URL")
        server = self._programs.redis[0]
        is_embedded = server == find_embedded_valkey(self._settings.venv)
        return Check("redis", "ok", "embedded Valkey" if is_embedded else server)

    def _ask(self, command: Sequence[str]) -> object:
        answer = _output(command, child_environment(self._settings))
        try:
            return json.loads(answer) if answer is not None else None
        except ValueError:
            return None


def show(checks: Sequence[Check], console: Console, *, as_json: bool) -> int:
    """Print the findings; exit code 0 when the stack could start, 1 when a problem prevents it."""
    can_start = all(check.level != "problem" for check in checks)
    if as_json:
        listed = [dataclasses.asdict(check) for check in checks]
        console.line(json.dumps({"can_start": can_start, "checks": listed}))
        return 0 if can_start else EXIT_FAILED
    for check in checks:
        console.line(f"{check.level:<8} {check.name:<12} {check.detail}")
        if check.fix is not None:
            console.line(f"{'':<21} fix: {check.fix}")
    console.line("the stack can start" if can_start else "the stack cannot start: fix the problems above")
    return 0 if can_start else EXIT_FAILED


def _folder(name: str, folder: Path, need_bytes: int, *, setting: str) -> Check:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        detail = f"{setting} is {folder}, but {existing} is not a folder one can write to"
        return Check(name, "problem", detail, f"set {setting} to another folder")
    free_bytes = shutil.disk_usage(existing).free
    detail = f"{folder}, {format_bytes(free_bytes)} free"
    if free_bytes < need_bytes:
        return Check(name, "problem", f"{detail}, {format_bytes(need_bytes)} needed", f"make room or set {setting}")
    return Check(name, "ok", detail)


def _memory() -> Check:
    fields = {}
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return Check("memory", "note", "unknown on this system")
    for line in meminfo.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        fields[key] = int(value.split()[0]) * 1024
    available_bytes = fields["MemAvailable"]
    detail = f"{format_bytes(available_bytes)} available of {format_bytes(fields['MemTotal'])}"
    if available_bytes < MEMORY_BYTES_MIN:
        return Check("memory", "problem", f"{detail}, {format_bytes(MEMORY_BYTES_MIN)} needed", "close other programs")
    return Check("memory", "ok", detail)


def _processor() -> Check:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split()) if cpuinfo.exists() else set()
    vectors = [name for name, flag in (("AVX-512", "avx512f"), ("AVX2", "avx2")) if flag in words]
    detail = f"{num_cores} cores, {platform.machine()}, {', '.join(vectors) or 'no AVX2'}"
    return Check("processor", "ok" if vectors else "note", detail)


def _docker() -> Iterator[Check]:
    version = _output(("docker", "--version"))
    if version is None:
        yield Check("docker", "note", "none; only needed for the containers")
        return
    yield Check("docker", "ok", version)
    compose = _output(("docker", "compose", "version", "--short"))
    if compose is None:
        yield Check("compose", "note", "no compose plugin; the containers need compose v2")
    else:
        yield Check("compose", "ok", compose)


def _output(command: Sequence[str], environ: dict[str, str] | None = None) -> str | None:
    """What a program prints, None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
