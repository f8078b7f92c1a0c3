"""A stand-in engine: the same HTTP contract, tokens from a script, no model. For tests, benchmarks and scripted images.

Owns one sequence like the real engine: one running request, a queue of one, fences, cancellation by closing. What it
answers is set with Script (per request or for all); it records every request it was given. Run it inside a test or as
`python -m support.scripted_engine` (settings ENGINE_HOST, ENGINE_PORT, ENGINE_MODEL, ENGINE_CONTEXT, SOLOIST_HOME).
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import uvicorn
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, set_span_in_context
from tokenizers import Tokenizer

from contracts import codec, telemetry
from contracts.engine_info import EngineInfo, MemoryReport, Rates, Readiness, Region
from contracts.errors import EngineBusy, EngineLoading, InvalidRequest, ServiceError, StaleLease
from contracts.generate import (
    Accepted,
    Event,
    Failed,
    Fence,
    Finished,
    GenerateRequest,
    Prefill,
    Timings,
    TokenLogprob,
    Tokens,
    Usage,
)
from contracts.home import resolve_home
from contracts.model_folder import MANIFEST_NAME, TOKENIZER_NAME
from contracts.observability import extract_context, start_telemetry

Scope = dict[str, Any]
_STATUS = {"stale_lease": 409, "engine_busy": 409, "engine_loading": 503, "invalid_request": 400}


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine does with a request.

    text is encoded with the model's tokenizer (no control tokens), ids are taken as they are; either is cut by
    max_new_tokens. Delays are seconds. refuse answers before any event; fail, drop, die and garbage come after that
    many tokens: a failed event, a broken connection, SIGKILL of the process, a line that is no event. stall_after says
    nothing more until the request is stopped.
    """

    text: str = "ok"
    ids: list[int] | None = None
    tokens_per_event: int = 1
    accept_delay_s: float = 0.0
    prefill_events: int = 1
    prefill_delay_s: float = 0.0
    token_delay_s: float = 0.0
    finish: Literal["stop", "length", "cancelled", "preempted"] = "stop"
    cached_tokens: int = 0
    refuse: Failed | None = None
    refuse_status: int = 503
    fail: Failed | None = None
    fail_after: int = 0
    drop_after: int | None = None
    die_after: int | None = None
    garbage_after: int | None = None
    stall_after: int | None = None


@dataclass
class Seen:
    """One request as the engine took it; emitted counts its tokens, end is the terminal event or `cancelled`."""

    request: GenerateRequest
    headers: Mapping[str, str]
    started_s: float
    emitted: int = 0
    end: str | None = None
    ended_s: float | None = None


@dataclass
class _Turn:
    """A request that runs or waits; stop holds the reason why it must end."""

    fence: Fence
    stop: asyncio.Event
    reason: Literal["cancelled", "preempted"] = "cancelled"


class _Dropped(Exception):
    """Ends the connection without a terminal event; uvicorn closes it."""


class ScriptedEngine:
    """The ASGI application and its memory; change script between requests, read seen after them."""

    def __init__(self, model_folder: Path, context_limit: int | None = None, otlp_endpoint: str | None = None) -> None:
        manifest = codec.decode_manifest((model_folder / MANIFEST_NAME).read_bytes())
        tokenizer_file = (model_folder / TOKENIZER_NAME).read_bytes()
        plain = json.loads(tokenizer_file) | {"added_tokens": []}
        self._tokenizer = Tokenizer.from_str(json.dumps(plain))
        self.info = EngineInfo(
            model_id=manifest.name,
            family=manifest.family,
            context_limit=context_limit or manifest.context_limit,
            vocab_size=manifest.vocab_size,
            tokenizer_sha256=hashlib.sha256(tokenizer_file).hexdigest(),
            stop_token_ids=manifest.stop_token_ids,
            kv_format="none",
            speculation="none",
            executor="scripted",
            memory=MemoryReport([Region("script", 0)], 0, None),
            rates=Rates(1000.0, 100.0),
            fence=None,
            version="scripted",
        )
        self.script = Script()
        self.next_scripts: list[Script] = []
        self.readiness = Readiness("ready", 1.0)
        self.seen: list[Seen] = []
        self.may_die = False
        self._telemetry = start_telemetry("soloist-engine", "scripted", otlp_endpoint)
        self._lock = asyncio.Lock()
        self._turns: dict[str, _Turn] = {}
        self._fence: Fence = (0, 0)

    @property
    def active(self) -> int:
        """Requests that run or wait."""
        return len(self._turns)

    def forget(self) -> None:
        """Default script, empty memory; the fence stays, as in a running engine."""
        self.script = Script()
        self.next_scripts.clear()
        self.seen.clear()
        self.readiness = Readiness("ready", 1.0)

    def preempt(self) -> None:
        """What a request with a higher fence does to the one that runs."""
        epoch, number = self._fence
        self._fence = (epoch, number + 1)
        self._preempt_lower(self._fence)

    def stop_telemetry(self) -> None:
        """Flush the spans."""
        self._telemetry.shutdown()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """The ASGI entry point."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        method, path = scope["method"], scope["path"]
        body = await _read_body(receive) if method in ("POST", "PUT") else b""
        try:
            if (method, path) == ("POST", "/v1/generate"):
                await self._generate(scope, body, receive, send)
            elif method == "POST" and path.startswith("/v1/requests/") and path.endswith("/cancel"):
                await self._cancel(path.split("/")[3], body, send)
            else:
                await self._answer_small(method, path, body, send)
        except ServiceError as error:
            await _reply(send, _STATUS.get(error.code, 500), codec.encode(error.to_failed()))
        except _Dropped:
            raise
        except Exception as error:
            await _reply(send, 500, codec.encode(Failed("internal_error", repr(error), False)))
            raise

    async def _answer_small(self, method: str, path: str, body: bytes, send: Any) -> None:
        if path == "/v1/info":
            fence = self._fence if self._fence != (0, 0) else None
            await _reply(send, 200, codec.encode(msgspec.structs.replace(self.info, fence=fence)))
        elif path == "/health/live":
            await _reply(send, 200, b'{"status":"alive"}')
        elif path == "/health/ready":
            await _reply(send, 200 if self.readiness.status == "ready" else 503, codec.encode(self.readiness))
        elif (method, path) == ("PUT", "/script"):
            self.script = msgspec.json.decode(body, type=Script)
            await _reply(send, 200, b"{}")
        elif path == "/seen":
            entries = [{"request_id": seen.request.request_id, "emitted": seen.emitted, "end": seen.end,
                        "token_ids": seen.request.token_ids} for seen in self.seen]  # fmt: skip
            await _reply(send, 200, msgspec.json.encode(entries))
        else:
            await _reply(send, 404, codec.encode(Failed("not_found", f"no {method} {path}", False)))

    async def _cancel(self, request_id: str, body: bytes, send: Any) -> None:
        request = codec.decode_cancel_request(body)
        turn = self._turns.get(request_id)
        if turn is None:
            await _reply(send, 404, codec.encode(Failed("not_found", f"no request {request_id}", False)))
            return
        self._check_fence(request.fence)
        turn.reason = "preempted" if request.reason == "preempt" else "cancelled"
        turn.stop.set()
        await _reply(send, 200, b"{}")

    async def _generate(self, scope: Scope, body: bytes, receive: Any, send: Any) -> None:
        request = codec.decode_generate_request(body)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        script = self.next_scripts.pop(0) if self.next_scripts else self.script
        if self.readiness.status != "ready":
            raise EngineLoading("the engine is loading")
        if script.refuse is not None:
            await _reply(send, script.refuse_status, codec.encode(script.refuse))
            return
        self._check_request(request)
        turn = _Turn(request.fence or self._fence, asyncio.Event())
        self._check_fence(request.fence)
        if len(self._turns) >= 2:
            raise EngineBusy("one request runs and one waits")
        self._preempt_lower(turn.fence)
        seen = Seen(request, headers, time.monotonic())
        self.seen.append(seen)
        self._turns[request.request_id] = turn
        watcher = asyncio.ensure_future(_watch(receive, turn.stop))
        try:
            async with self._lock:
                await self._traced(seen, script, turn, send)
        finally:
            watcher.cancel()
            del self._turns[request.request_id]
            seen.end = seen.end or "cancelled"
            seen.ended_s = time.monotonic()

    def _check_request(self, request: GenerateRequest) -> None:
        room = self.info.context_limit - len(request.token_ids)
        if request.max_new_tokens > room:
            raise InvalidRequest(f"max_new_tokens {request.max_new_tokens} exceeds the room of {room}")
        if max(request.token_ids) >= self.info.vocab_size:
            raise InvalidRequest(f"token id {max(request.token_ids)} is not in the vocabulary")

    def _check_fence(self, fence: Fence | None) -> None:
        if fence is None:
            return
        if fence < self._fence:
            raise StaleLease(f"fence {fence} is lower than {self._fence}")
        self._fence = fence

    def _preempt_lower(self, fence: Fence) -> None:
        for turn in self._turns.values():
            if turn.fence < fence:
                turn.reason = "preempted"
                turn.stop.set()

    async def _traced(self, seen: Seen, script: Script, turn: _Turn, send: Any) -> None:
        parent = extract_context(seen.headers)
        tracer = self._telemetry.tracer
        span = tracer.start_span(telemetry.SPAN_GENERATE, context=parent, kind=SpanKind.SERVER)
        inner = set_span_in_context(span, parent)
        try:
            await self._play(seen, script, turn, send, inner)
        finally:
            span.end()

    async def _play(self, seen: Seen, script: Script, turn: _Turn, send: Any, context: Context) -> None:
        request, tracer = seen.request, self._telemetry.tracer
        stopped = await _pause(script.accept_delay_s, turn)
        stream = _EventStream(send)
        await stream.open()
        if stopped:
            await self._finish(stream, seen, script, turn.reason)
            return
        await stream.write(Accepted(script.cached_tokens, "device" if script.cached_tokens else "none", 0.0))
        with tracer.start_as_current_span(telemetry.SPAN_PREFILL, context=context):
            total = len(request.token_ids) - script.cached_tokens
            for number in range(1, script.prefill_events + 1):
                if await _pause(script.prefill_delay_s, turn):
                    await self._finish(stream, seen, script, turn.reason)
                    return
                await stream.write(Prefill(total * number // script.prefill_events, total))
        with tracer.start_as_current_span(telemetry.SPAN_DECODE, context=context):
            reason = await self._decode(stream, seen, script, turn)
        if reason is not None:
            await self._finish(stream, seen, script, reason)

    async def _decode(self, stream: "_EventStream", seen: Seen, script: Script, turn: _Turn) -> Any:
        """Emit the script's tokens; the finish reason, or None when the stream already ended."""
        request = seen.request
        ids = script.ids if script.ids is not None else self.encode(script.text)
        for start in range(0, len(ids), script.tokens_per_event):
            stalls = script.stall_after is not None and seen.emitted >= script.stall_after
            if await _pause(3600.0 if stalls else script.token_delay_s, turn):
                return turn.reason
            if await self._break_off(stream, seen, script):
                return None
            group = ids[start : start + script.tokens_per_event][: request.max_new_tokens - seen.emitted]
            seen.emitted += len(group)
            await stream.write(Tokens(group, _logprobs(group, request.logprobs)))
            if seen.emitted >= request.max_new_tokens:
                return "length"
        return None if await self._break_off(stream, seen, script) else script.finish

    async def _break_off(self, stream: "_EventStream", seen: Seen, script: Script) -> bool:
        if script.die_after is not None and seen.emitted >= script.die_after:
            if self.may_die:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.end = "died"
            raise _Dropped
        if script.drop_after is not None and seen.emitted >= script.drop_after:
            seen.end = "dropped"
            raise _Dropped
        if script.garbage_after is not None and seen.emitted >= script.garbage_after:
            await stream.write_line(b'{"type":"surprise"}\n')
        if script.fail is not None and seen.emitted >= script.fail_after:
            seen.end = "failed"
            await stream.write(script.fail)
            await stream.close()
            return True
        return False

    async def _finish(self, stream: "_EventStream", seen: Seen, script: Script, reason: Any) -> None:
        usage = Usage(len(seen.request.token_ids), script.cached_tokens, seen.emitted)
        elapsed_ms = (time.monotonic() - seen.started_s) * 1e3
        seen.end = reason
        await stream.write(Finished(reason, usage, Timings(0.0, 0.0, 0.0, elapsed_ms, None)))
        await stream.close()

    def encode(self, text: str) -> list[int]:
        """The ids of plain text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class _EventStream:
    """NDJSON through ASGI, one message per event as the real engine sends them."""

    def __init__(self, send: Any) -> None:
        self._send = send

    async def open(self) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, event: Event) -> None:
        await self.write_line(codec.encode_line(event))

    async def write_line(self, line: bytes) -> None:
        await self._send({"type": "http.response.body", "body": line, "more_body": True})

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _logprobs(ids: list[int], num_top: int | None) -> list[TokenLogprob] | None:
    """Made up but checkable: -id/1000 for the token and its successors."""
    if num_top is None:
        return None
    return [TokenLogprob(-i / 1000, [(i + k, -(i + k) / 1000) for k in range(num_top)]) for i in ids]


async def _pause(duration_s: float, turn: _Turn) -> bool:
    """Wait; whether the turn must end. Without a delay other tasks still get their chance to stop it."""
    if duration_s <= 0:
        return turn.stop.is_set()
    with suppress(TimeoutError):
        async with asyncio.timeout(duration_s):
            await turn.stop.wait()
    return turn.stop.is_set()


async def _watch(receive: Any, stop: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stop.set()


async def _read_body(receive: Any) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


async def _reply(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def main() -> int:
    """Serve the model folder of ENGINE_MODEL until a signal."""
    environ = os.environ
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default=environ.get("ENGINE_HOST") or "127.0.0.1")
    parser.add_argument("--port", type=int, default=int(environ.get("ENGINE_PORT") or 8001))
    parser.add_argument("--model", default=environ.get("ENGINE_MODEL") or "smollm2-135m")
    parser.add_argument("--context", type=int, default=int(environ.get("ENGINE_CONTEXT") or 0) or None)
    parser.add_argument("--script", help="JSON of a Script", default=None)
    arguments = parser.parse_args()
    folder = resolve_home(environ) / "models" / arguments.model
    if not (folder / MANIFEST_NAME).is_file():
        sys.stderr.write(f"scripted engine: no model folder {folder}; run: ./soloist fetch {arguments.model}\n")
        return 2
    engine = ScriptedEngine(folder, arguments.context, environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None)
    engine.may_die = True
    if arguments.script is not None:
        engine.script = msgspec.json.decode(arguments.script, type=Script)
    config = uvicorn.Config(
        engine, host=arguments.host, port=arguments.port, loop="uvloop", http="httptools", ws="none",
        log_level="warning", access_log=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    server.run()
    engine.stop_telemetry()
    return 0


if __name__ == "__main__":
    sys.exit(main())
