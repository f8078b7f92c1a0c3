"""Stop strings over text that arrives in pieces. Owns the text that may still turn out to be a stop string.

The match that starts first in the whole text wins (the shorter of two at one place); it and all after it are dropped.
The result depends on the text alone, never on where it was split. Does not know tokens.
"""

from collections.abc import Sequence


class StopMatcher:
    """Feed text, get back what can no longer belong to a stop string; matched is the string that ended the reply."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(dict.fromkeys(stops))
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._max_chars = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text released by this piece; once a stop string matched nothing more is released."""
        if not self._stops or self.matched is not None:
            return "" if self.matched is not None else text
        held = self._held + text
        start, stop = self._find(held)
        open_start = self._find_open(held, start)
        if stop is not None and open_start == start:
            self.matched = stop
            self._held = ""
            return held[:start]
        self._held = held[open_start:]
        return held[:open_start]

    def finish(self) -> str:
        """The end of the text: what is left is released, up to a complete stop string in it."""
        held, self._held = self._held, ""
        start, stop = self._find(held)
        self.matched = self.matched or stop
        return held[:start]

    def _find(self, text: str) -> tuple[int, str | None]:
        """Start of the first complete stop string, else the end of text."""
        found = [(start, len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return len(text), None
        start, _, stop = min(found)
        return start, stop

    def _find_open(self, text: str, limit: int) -> int:
        """First position before limit where text ends inside a stop string, else limit."""
        for start in range(max(0, len(text) - self._max_chars + 1), limit):
            if text[start] in self._first_chars:
                tail = text[start:]
                if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                    return start
        return limit
