"""The command line: verbs, help, dispatch, and the edge where every fault becomes one line. Owns no behaviour.

`--help` and a wrong command line need nothing installed; only verbs that run services make the environment first.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from contracts.plan_arguments import parse_plan
from launcher.bench_help import BENCHMARKS, asks_help, describe_benchmark
from launcher.chat import stream_answer
from launcher.console import Console
from launcher.control import show_status, stop_stack
from launcher.detach import run_detached
from launcher.doctor import Doctor, show
from launcher.environment import Environment, Group, InstallTools, default_tools
from launcher.errors import EXIT_FAILED, LauncherError, as_launcher_error
from launcher.home_check import check_home
from launcher.programs import Programs, choose_programs
from launcher.quality import Tiers, list_steps, run_steps
from launcher.settings import LauncherSettings, child_environment, load_settings
from launcher.stack_plan import DEFAULT_MODEL, DEFAULT_PORT, UpOptions, check_given
from launcher.state import read_state
from launcher.up import run_foreground

ROOT = Path(__file__).resolve().parents[2]
EXIT_INTERRUPTED = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, so that what Ctrl-C tidies up is tidied up then too."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a verb may use; out is stdout, err is stderr (progress and faults)."""

    settings: LauncherSettings
    choose: Callable[[LauncherSettings], Programs]
    environment: Environment
    out: Console
    err: Console

    def prepare(self, *groups: Group) -> None:
        """Have the packages of these groups."""
        try:
            self.environment.ensure(("run", *groups), self.err)
        finally:
            self.err.clear_status()


def main(
    arguments: Sequence[str],
    *,
    root: Path = ROOT,
    choose: Callable[[LauncherSettings], Programs] = choose_programs,
    tools: InstallTools | None = None,
) -> int:
    """Run one verb and return its exit code: 0 ok, 1 failed, 2 refused, 130 interrupted."""
    options, extra = _parse(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a script's background job ignores it
    signal.signal(signal.SIGTERM, _raise_terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _raise_terminated)
    err = Console(sys.stderr, is_terminal=sys.stderr.isatty(), color=False)
    try:
        settings = load_settings(root)
        out = Console(sys.stdout, is_terminal=sys.stdout.isatty(), color=settings.color)
        context = Context(settings, choose, Environment(settings, tools or default_tools()), out, err)
        exit_code = _VERBS[options.verb](options, extra, context)
        return EXIT_FAILED if out.lost_output and exit_code == 0 else exit_code
    except LauncherError as error:
        err.line(f"soloist: {error.message}")
        return error.exit_code
    except KeyboardInterrupt:
        err.line("soloist: interrupted")
        return EXIT_INTERRUPTED
    except OSError as error:
        err.line(f"soloist: {as_launcher_error(error).message}")
        return EXIT_FAILED


def build_parser() -> argparse.ArgumentParser:
    """The whole command line with its help."""
    parser = argparse.ArgumentParser(
        prog="soloist",
        description="Runs Soloist on this machine. The first verb that needs packages makes a virtual environment.",
        epilog="Exit codes: 0 ok, 1 failed, 2 refused. SOLOIST_HOME moves models, state and logs (default "
        "~/.cache/soloist), SOLOIST_VENV the virtual environment (default .venv beside this script).",
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(name: str, text: str, details: str = "") -> argparse.ArgumentParser:
        description = f"{text[0].upper()}{text[1:]}. {details}".strip()
        return verbs.add_parser(name, help=text, description=description, allow_abbrev=False)

    _add_up(add("up", "start the stack and keep it running", _UP_DETAILS))
    add("down", "stop the stack of this home and wait until it is gone")
    status = add("status", "show what runs: pids, ports, model, readiness", "Exit code 0 when ready, 1 otherwise.")
    _add_json(status)
    test = add("test", "run lint, types and tests", "All other arguments go to pytest.")
    test.add_argument("--full", action="store_true", help="add the longer tests")
    test.add_argument("--release", action="store_true", help="add soak, container and chaos tests")
    _add_json(add("models", "list the models that can be served and which are present"))
    fetch = add("fetch", "download a model into the home")
    fetch.add_argument("model", metavar="MODEL", help="a name that `soloist models` lists")
    _add_convert(add("convert", "make a model folder from a checkpoint", "A stopped one goes on when run again."))
    chat = add("chat", "ask the running stack one question and print the answer as it comes")
    chat.add_argument("text", help="the question")
    chat.add_argument("--url", help="server to ask (default: the stack of this home, else port 8000)")
    # Their options are plan_arguments'; this entry is for the list of verbs.
    add("plan", "say what a model takes of a card's memory and whether it fits")
    _add_json(add("doctor", "check whether the stack can start here", "Exit code 0 when it can, 1 otherwise."))
    bench = add("bench", "measure speed", "Further arguments go to the benchmark; try `bench decode --help`.")
    bench.add_argument("what", choices=BENCHMARKS, help="what to measure")
    return parser


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """The verb's options, and what belongs to pytest, a benchmark or the planner (checked here already)."""
    parser = build_parser()
    if arguments[:1] == ["bench"] and arguments[1:2] != []:
        return parser.parse_args(arguments[:2]), arguments[2:]
    if arguments[:1] == ["plan"]:
        parse_plan("soloist plan", arguments[1:])
        return parser.parse_args(["plan"]), arguments[1:]
    options, extra = parser.parse_known_args(arguments)
    if extra and options.verb != "test":
        parser.error(f"unrecognised arguments: {' '.join(extra)}")
    return options, extra


_UP_DETAILS = (
    "Fetches the model when it is missing, then runs Redis (REDIS_URL, else redis-server on the path, else an embedded "
    "Valkey), engine and gateway as child processes until Ctrl-C, SIGTERM or the death of a child, which stops the "
    "rest. ENGINE_* and GATEWAY_* variables reach the services."
)


def _add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--model", help=f"model to serve (default {DEFAULT_MODEL})")
    up.add_argument("--port", type=int, help=f"port of the gateway, 0 for any free one (default {DEFAULT_PORT})")
    up.add_argument("--detach", action="store_true", help="run in the background; return when ready")
    up.add_argument(
        "--restart",
        action="store_true",
        help="start a child that dies after ready again (after 0.5 s, then twice as long each time; at most 5 times "
        "in 60 s) instead of stopping the stack",
    )
    up.add_argument("--report-fd", type=int, help=argparse.SUPPRESS)


def _add_convert(convert: argparse.ArgumentParser) -> None:
    convert.add_argument("source", metavar="SRC", type=Path, help="a folder with config.json, or a .gguf file")
    convert.add_argument("--out", metavar="DIR", type=Path, required=True, help="the model folder to make")
    convert.add_argument("--recipe", choices=("balanced", "compact", "exact"), help="bits per matrix (balanced)")
    convert.add_argument("--name", help="the model's name (DIR's last part); a supported one must be that model")
    convert.add_argument(
        "--calibrate", action="store_true", help="centre the KV cache (done anyway where the default KV format is)"
    )
    convert.add_argument("--verify", action="store_true", help="read DIR again and compare every digest")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")


def _up(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    wanted = UpOptions(options.model, options.port, restarts=options.restart)
    check_home(context.settings.home)
    check_given(wanted, context.settings)
    if options.report_fd is None:
        context.prepare()
    programs = context.choose(context.settings)
    if options.detach:
        return run_detached(wanted, context.settings, programs, context.out)
    return run_foreground(wanted, context.settings, programs, context.out, report_fd=options.report_fd)


def _down(_options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    check_home(context.settings.home)
    return stop_stack(context.settings, context.out)


def _status(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    check_home(context.settings.home)
    return show_status(context.settings, context.out, as_json=options.json)


def _test(options: argparse.Namespace, extra: Sequence[str], context: Context) -> int:
    context.prepare("dev")
    steps = list_steps(context.settings, Tiers(options.full, options.release), extra)
    return run_steps(steps, context.settings, context.out)


def _models(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    check_home(context.settings.home)
    context.prepare()
    command = context.choose(context.settings).models
    return _become((*command, "--json") if options.json else command, context.settings)


def _fetch(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    check_home(context.settings.home)
    context.prepare()
    return _become((*context.choose(context.settings).fetch, options.model), context.settings)


def _convert(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    context.prepare()
    python = context.choose(context.settings).python
    paths = (str(options.source.absolute()), "--out", str(options.out.absolute()))  # the folder changes below
    given = {"--recipe": options.recipe, "--name": options.name}
    words = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    words += [flag for flag, wanted in (("--calibrate", options.calibrate), ("--verify", options.verify)) if wanted]
    return _become((python, "-m", "engine.convert", *paths, *words), context.settings)


def _plan(_options: argparse.Namespace, extra: Sequence[str], context: Context) -> int:
    context.prepare()
    return _become((*context.choose(context.settings).plan, *extra), context.settings)


def _chat(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    record = None if options.url else read_state(context.settings.run_folder)
    url = options.url or (record.url if record else f"http://127.0.0.1:{DEFAULT_PORT}")

    try:
        stream_answer(url, options.text, context.out.piece)
    finally:
        context.out.end_pieces()
    return 0


def _doctor(options: argparse.Namespace, _extra: Sequence[str], context: Context) -> int:
    doctor = Doctor(context.settings, context.choose(context.settings), context.environment)
    return show(doctor.run(), context.out, as_json=options.json)


def _bench(options: argparse.Namespace, extra: Sequence[str], context: Context) -> int:
    if asks_help(extra):
        context.out.line(describe_benchmark(options.what))
        return 0
    context.prepare("dev")
    python = context.choose(context.settings).python
    module = ("gateway.bench",) if options.what == "gateway" else ("engine.bench", options.what)
    return _become((python, "-m", *module, *extra), context.settings)


def _become(command: Sequence[str], settings: LauncherSettings) -> int:
    """Replace this process by a program, which then owns the terminal, the signals and the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(settings.root)
    os.execve(command[0], list(command), child_environment(settings))


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    raise Terminated(signal.Signals(number).name)


_VERBS: dict[str, Callable[[argparse.Namespace, Sequence[str], Context], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "test": _test,
    "models": _models,
    "fetch": _fetch,
    "convert": _convert,
    "plan": _plan,
    "chat": _chat,
    "doctor": _doctor,
    "bench": _bench,
}
