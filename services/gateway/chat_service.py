"""One generation from the queue to its terminal event: ticket, lane, attempts, end. Owns this order and its failures.

Receives an Admission and a ReplySink; the reply goes into the sink, what ended it otherwise is raised. Ticket and lane
are given back on every path in tasks of their own, so that no cancellation can leak them. Knows no dialect, no HTTP.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contracts import telemetry as names
from contracts.errors import EngineBusy, EngineLoading, EngineLost, QueueUnavailable, ServiceError, StaleLease
from contracts.observability import inject_context
from gateway.admission import Admission, mark_failed
from gateway.clients.engine import EngineClient
from gateway.generation import Generation
from gateway.heartbeat import Heartbeat
from gateway.instruments import Instruments
from gateway.interrupt import Interrupt
from gateway.readiness import Readiness
from gateway.reply import ReplyEnd, ReplySink
from gateway.request_context import RequestContext
from gateway.turnstile import Lease, Ticket, TicketEntry, Turnstile

_MAX_LANES = 3  # leases tried when the engine has seen a higher fence than ours
_FIRST_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Seconds: first_beat_s and beat_s of silence towards a client, engine_wait_s of patience with a lost engine."""

    first_beat_s: float
    beat_s: float
    engine_wait_s: float


class ChatService:
    """Serves admissions on one engine; close() after the last one."""

    def __init__(
        self,
        engine: EngineClient,
        turnstile: Turnstile,
        readiness: Readiness,
        instruments: Instruments,
        limits: ServiceLimits,
    ) -> None:
        self._engine = engine
        self._turnstile = turnstile
        self._readiness = readiness
        self._instruments = instruments
        self._limits = limits
        self._settling: set[asyncio.Task[None]] = set()

    async def serve(
        self, admission: Admission, sink: ReplySink, context: RequestContext, interrupt: Interrupt
    ) -> ReplyEnd:
        """Queue, run and end one reply. interrupt is the caller's; a superseded lease fires it.

        Raises: QueueFull and QueueUnavailable before anything was shown; EngineLost, StaleLease and the engine's
        own failures at any time.
        """
        beat = Heartbeat(sink, first_s=self._limits.first_beat_s, every_s=self._limits.beat_s)
        generation = Generation(admission, sink, beat, context, self._instruments)
        for num_left in reversed(range(_MAX_LANES)):
            lease = await self._take_lane(admission, beat, context, generation)
            try:
                with _watched(lease, interrupt):
                    end = await self._run(lease, generation, beat)
                generation.record(time.monotonic())
                return end
            except StaleLease:
                if generation.has_tokens or not num_left:
                    raise
                await self._overtake_fence()
            finally:
                self._later(lease.release(generation.engine_s))
        raise AssertionError("the last round returns or raises")

    async def close(self) -> None:
        """Wait until everything was given back."""
        while self._settling:
            await asyncio.wait(self._settling)

    async def _take_lane(
        self, admission: Admission, beat: Heartbeat, context: RequestContext, generation: Generation
    ) -> Lease:
        context.phase = "queued"
        started_s = time.monotonic()
        with self._instruments.tracer.start_as_current_span(names.SPAN_QUEUE_WAIT, record_exception=False) as span:
            try:
                ticket = await self._turnstile.enqueue(_entry(admission))
                span.set_attribute(names.BAND, ticket.entry.band)
                span.set_attribute(names.QUEUE_POSITION, ticket.position)
                return await self._wait(ticket, beat)
            except ServiceError as error:
                mark_failed(span, error.code)
                raise
            finally:
                generation.queue_s += time.monotonic() - started_s

    async def _wait(self, ticket: Ticket, beat: Heartbeat) -> Lease:
        lease: Lease | None = None
        try:
            while lease is None:
                lease = await ticket.wait(beat.due_in_s)
                if lease is None:
                    await beat.beat()
        finally:
            if lease is None:
                self._later(ticket.leave())
        return lease

    async def _run(self, lease: Lease, generation: Generation, beat: Heartbeat) -> ReplyEnd:
        """Attempts on one lane: before the first token a busy or vanished engine is waited for and asked again."""
        if lease.lane != self._engine.url:
            wrong = f"lane {lease.lane} is no engine of this gateway"
            raise QueueUnavailable(f"{wrong}: gateways on one Redis need the same GATEWAY_ENGINE_URL")
        give_up_s = 0.0
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                end, stream = await generation.attempt(self._engine, lease.fence)
            except (EngineBusy, EngineLoading, EngineLost) as error:
                if not isinstance(error, EngineBusy):
                    self._readiness.note_lost(error)
                if generation.has_tokens:
                    raise
                give_up_s = give_up_s or time.monotonic() + self._limits.engine_wait_s
                if not await self._pause(pause_s, give_up_s, beat):
                    raise
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            else:
                self._later(stream.drain())
                return end

    async def _pause(self, pause_s: float, give_up_s: float, beat: Heartbeat) -> bool:
        """Wait at least pause_s and until the engine is ready; False when give_up_s passed first."""
        wake_s = time.monotonic() + pause_s
        while (now_s := time.monotonic()) < give_up_s:
            if now_s < wake_s:
                await asyncio.sleep(min(wake_s - now_s, beat.due_in_s))
            elif await self._readiness.wait(min(give_up_s - now_s, beat.due_in_s)):
                return True
            await beat.beat()
        return False

    async def _overtake_fence(self) -> None:
        """Learn the highest fence the engine saw, so that the next lease goes above it."""
        info = await self._engine.fetch_info()
        if info.fence is not None:
            await self._turnstile.raise_fence(info.fence)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


@contextmanager
def _watched(lease: Lease, interrupt: Interrupt) -> Iterator[None]:
    """Fire the interrupt when another ticket holds the lane; a store that is merely away does not end a reply."""

    async def watch() -> None:
        await lease.lost.wait()
        if lease.lost_reason == "superseded":
            interrupt.fire(StaleLease("the lane was given to another request"))

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watcher.cancel()


def _entry(admission: Admission) -> TicketEntry:
    trace: dict[str, str] = {}
    inject_context(trace)
    return TicketEntry(
        request_id=admission.generate.request_id,
        agent=admission.identity.flow,
        band="interactive",
        cost_s=admission.cost_s,
        num_prompt_tokens=admission.budget.prompt_tokens,
        trace=trace,
    )
