"""The engine: one worker thread that owns the live sequence, one running request, one waiting one, fences.

Receives validated requests from any thread, hands events to each request's sink from the worker thread; every sink gets
exactly one Finished or Failed, as its last event. It owns no HTTP, no queue beyond one and no device memory.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts.engine_info import EngineInfo, MemoryReport, Rates
from contracts.errors import EngineBusy, InvalidRequest, NotFound, ServiceError, ShuttingDown, StaleLease
from contracts.generate import (
    CancelRequest,
    Event,
    Failed,
    Fence,
    Finished,
    GenerateRequest,
    Timings,
    Usage,
)
from engine import VERSION
from engine.rates import RateMeter
from engine.runtime.generation import Generation, LiveSequence
from engine.runtime.interrupt import Ending
from engine.runtime.job import Job
from engine.runtime.speculate import Speculation
from engine.validate import RequestLimits, make_job

Sink = Callable[[Event], None]
"""Takes one event; called from the worker thread or from the thread that ended a waiting request; must not block."""

_LOG = logging.getLogger("engine")
_BUSY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What `/v1/info` says of an engine and that never changes."""

    model_id: str
    family: str
    tokenizer_sha256: str
    kv_format: str
    speculation: str
    executor: str
    memory: MemoryReport


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that was taken."""

    job: Job
    sink: Sink


class Engine:
    """Accepts, runs and ends requests. close() ends the worker."""

    def __init__(
        self,
        sequence: LiveSequence,
        speculation: Speculation,
        identity: Identity,
        limits: RequestLimits,
        is_fatal: Callable[[BaseException], bool],
        on_fatal: Callable[[], None],
    ) -> None:
        """is_fatal says which errors leave the device unusable; on_fatal is called once after such a one."""
        self._sequence: Final = sequence
        self._speculation: Final = speculation
        self._identity: Final = identity
        self._limits: Final = limits
        self._is_fatal = is_fatal
        self._on_fatal = on_fatal
        self._rates = RateMeter()
        self._changed = threading.Condition()
        self._running: Ticket | None = None
        self._waiting: Ticket | None = None
        self._fence: Fence | None = None
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="engine-worker", daemon=True)
        self._worker.start()

    def submit(self, request: GenerateRequest, sink: Sink) -> Ticket:
        """Take a request: it runs at once, or waits for the running one; the ticket is for abandon().

        A higher fence than any before pauses every request below it.
        Raises: InvalidRequest, ContextTooLong, Unsupported, StaleLease, EngineBusy, ShuttingDown; sink is then unused.
        """
        ticket = Ticket(make_job(request, self._limits), sink)
        with self._changed:
            if self._closing:
                raise ShuttingDown("the engine is shutting down")
            self._observe(request.fence)
            self._refuse_duplicate(request.request_id)
            if self._waiting is not None:
                raise EngineBusy("the engine runs one request and one waits", retry_after_s=_BUSY_RETRY_S)
            if self._running is None:
                self._running = ticket
                self._changed.notify_all()
            else:
                self._waiting = ticket
        return ticket

    def cancel(self, request_id: str, cancel: CancelRequest) -> None:
        """Stop a request within one chunk or one round; what it computed stays.

        Raises: StaleLease; NotFound when no such request runs or waits.
        """
        with self._changed:
            self._require_fresh(cancel.fence)
            ticket = self._find(request_id)
            if ticket is not None:
                self._end(ticket, "preempted" if cancel.reason == "preempt" else "cancelled")
            self._observe(cancel.fence)
        if ticket is None:
            raise NotFound(f"no request {request_id!r} runs or waits")

    def abandon(self, ticket: Ticket) -> None:
        """Nobody reads this request's events any more: stop it as cancelled if it has not ended."""
        with self._changed:
            self._end(ticket, "cancelled")

    def info(self) -> EngineInfo:
        """The engine as it is now."""
        identity = self._identity
        return EngineInfo(
            model_id=identity.model_id,
            family=identity.family,
            context_limit=self._limits.context_limit,
            vocab_size=self._limits.vocab_size,
            tokenizer_sha256=identity.tokenizer_sha256,
            stop_token_ids=list(self._limits.stop_token_ids),
            kv_format=identity.kv_format,
            speculation=identity.speculation,
            executor=identity.executor,
            memory=identity.memory,
            rates=Rates(self._rates.prefill_tok_s, self._rates.decode_tok_s),
            fence=self._fence,
            version=VERSION,
        )

    def drain(self) -> None:
        """Take no more requests and end those there are as shutting_down, their state kept; returns at once."""
        with self._changed:
            self._closing = True
            for ticket in (self._waiting, self._running):
                if ticket is not None:
                    self._end(ticket, ShuttingDown("the engine is shutting down"))
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Drain and wait for the worker; False when it did not end in time."""
        self.drain()
        self._worker.join(timeout_s)
        return not self._worker.is_alive()

    def _observe(self, fence: Fence | None) -> None:
        self._require_fresh(fence)
        if fence is None or fence == self._fence:
            return
        self._fence = fence
        for ticket in (self._waiting, self._running):
            if ticket is not None and ticket.job.request.fence is not None and ticket.job.request.fence < fence:
                self._end(ticket, "preempted")

    def _require_fresh(self, fence: Fence | None) -> None:
        if fence is not None and self._fence is not None and fence < self._fence:
            raise StaleLease(f"fence {list(fence)} is below {list(self._fence)}, the last one seen")

    def _refuse_duplicate(self, request_id: str) -> None:
        ticket = self._find(request_id)
        if ticket is not None and ticket.job.interrupt.ending is None:
            raise InvalidRequest(f"request {request_id!r} already runs or waits", param="request_id")

    def _find(self, request_id: str) -> Ticket | None:
        for ticket in (self._waiting, self._running):
            if ticket is not None and ticket.job.request.request_id == request_id:
                return ticket
        return None

    def _end(self, ticket: Ticket, ending: Ending) -> None:
        """Stop a running ticket at its next look, a waiting one at once."""
        ticket.job.interrupt.fire(ending)
        if ticket is self._waiting:
            self._waiting = None
            ticket.sink(_unstarted_end(ticket.job, ending))

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._running is None and not self._closing:
                    self._changed.wait()
                ticket = self._running
            if ticket is None:
                return
            last = self._run(ticket)
            with self._changed:
                self._running, self._waiting = self._waiting, None
            ticket.sink(last)

    def _run(self, ticket: Ticket) -> Event:
        """Pass on every event but the last, which is returned: the lane is free before the caller hears of the end."""
        generation = Generation(ticket.job, self._sequence, self._limits.vocab_size, self._speculation)
        try:
            for event in generation.run():
                if isinstance(event, Finished):
                    self._rates.record(generation)
                    return event
                ticket.sink(event)
        except ServiceError as error:
            if error.code == "numerical_error":
                _LOG.error("request %s: %s", ticket.job.request.request_id, error.message)
            return error.to_failed()
        except Exception as error:  # noqa: BLE001 the worker's edge: one bad request must not end the process
            return self._crashed(ticket, error)
        raise AssertionError("a generation ended without Finished")

    def _crashed(self, ticket: Ticket, error: Exception) -> Failed:
        _LOG.error("request %s failed in the worker", ticket.job.request.request_id, exc_info=error)
        if self._is_fatal(error):
            self._on_fatal()
        else:
            self._sequence.drop()
        return Failed(code="internal_error", message="the engine failed on this request; see its log", retryable=False)


def _unstarted_end(job: Job, ending: Ending) -> Event:
    if isinstance(ending, ServiceError):
        return ending.to_failed()
    usage = Usage(job.output_start, 0, len(job.ids) - job.output_start)
    return Finished(ending, usage, Timings(queue_ms=0.0, restore_ms=0.0, prefill_ms=0.0, decode_ms=0.0, ttft_ms=None))
