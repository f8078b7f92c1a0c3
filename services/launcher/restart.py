"""When a child that died may be started again: back-off, and a limit that tells a crash from a crash loop."""

MAX_RESTARTS = 5
WINDOW_S = 60.0
FIRST_DELAY_S = 0.5


class RestartPolicy:
    """At most MAX_RESTARTS in WINDOW_S; within the window each delay is twice the last. Time comes from the caller."""

    EXHAUSTED = f"it was started again {MAX_RESTARTS} times in {WINDOW_S:g} s, giving up"

    def __init__(self) -> None:
        self._deaths_s: list[float] = []

    def next_delay_s(self, now_s: float) -> float | None:
        """Seconds to wait after a death at now_s, None when it has been too many."""
        self._deaths_s = [death_s for death_s in self._deaths_s if now_s - death_s < WINDOW_S]
        if len(self._deaths_s) >= MAX_RESTARTS:
            return None
        self._deaths_s.append(now_s)
        return FIRST_DELAY_S * 2.0 ** (len(self._deaths_s) - 1)
