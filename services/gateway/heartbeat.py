"""When a waiting client must hear something. Owns the time of the last byte, decides nothing else.

The first beat comes soon: until then a refusal can still be a plain HTTP error, from then on the headers are sent.
"""

import time

from gateway.reply import ReplySink


class Heartbeat:
    """One reply's clock; due_in_s is how long a caller may wait before it must call beat()."""

    def __init__(self, sink: ReplySink, *, first_s: float, every_s: float) -> None:
        self._sink = sink
        self._every_s = every_s
        self._due_s = time.monotonic() + first_s

    @property
    def due_in_s(self) -> float:
        """Seconds until the next beat, at least a millisecond."""
        return max(0.001, self._due_s - time.monotonic())

    def sent(self) -> None:
        """Something else was sent."""
        self._due_s = time.monotonic() + self._every_s

    async def beat(self) -> None:
        """Let the client hear that its request lives, if nothing else was sent in time."""
        if time.monotonic() >= self._due_s:
            await self._sink.keep_alive()
            self.sent()
