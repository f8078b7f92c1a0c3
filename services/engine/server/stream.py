"""One generation as an NDJSON response: events from the worker thread to the client, and its absence back.

Owns the bridge between thread and event loop, and the pulse of a prefill: when a chunk takes longer than a second, the
last progress is sent again. The stream ends with the engine's terminal event; a client that leaves ends the generation,
and what it computed stays.
"""

import asyncio
from typing import Final

from starlette.types import Receive, Scope, Send

from contracts.codec import encode_line
from contracts.generate import Accepted, Event, Failed, Finished, Prefill
from engine.engine import Engine, Ticket
from engine.server.instruments import RequestRecord

_HEADERS: Final = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_PULSE_S = 0.9


class EventQueue:
    """Filled by any thread, read by the event loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Hand over an event; dropped when the loop is gone, because then so is the client."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def get(self) -> Event:
        """The next event."""
        return await self._events.get()

    async def get_within(self, timeout_s: float) -> Event | None:
        """The next event, None when there was none in time."""
        try:
            return await asyncio.wait_for(self._events.get(), timeout_s)
        except TimeoutError:
            return None


class EventStream:
    """An ASGI response that sends each event as it comes and closes behind the terminal one."""

    def __init__(self, engine: Engine, ticket: Ticket, events: EventQueue, record: RequestRecord) -> None:
        self._engine = engine
        self._ticket = ticket
        self._events = events
        self._record = record
        self._num_ids = len(ticket.job.ids)
        self._progress: Prefill | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        watcher = asyncio.ensure_future(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while True:
                event = await self._next()
                self._record.see(event)
                is_last = isinstance(event, Finished | Failed)
                await send({"type": "http.response.body", "body": encode_line(event), "more_body": not is_last})
                if is_last:
                    return
        finally:
            watcher.cancel()
            self._engine.abandon(self._ticket)
            self._record.close()

    async def _next(self) -> Event:
        """The next event; in a prefill, the progress so far when a second is nearly over."""
        if self._progress is None:
            event = await self._events.get()
        else:
            event = await self._events.get_within(_PULSE_S) or self._progress
        if isinstance(event, Accepted):
            self._progress = Prefill(0, self._num_ids - event.cached_tokens)
        else:
            self._progress = event if isinstance(event, Prefill) else None
        return event

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._record.see_disconnect()
        self._engine.abandon(self._ticket)
