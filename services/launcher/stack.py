"""The children as one thing: start, wait for ready, watch, stop in order. Owns their life, not their command lines.

One thread decides: signals and child deaths arrive in an inbox, so that nothing happens inside a signal handler.
"""

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from launcher.child import Child, ChildEnd
from launcher.console import Reporter, format_duration
from launcher.errors import EXIT_FAILED, EXIT_REFUSED, LauncherError
from launcher.health import Probe
from launcher.restart import RestartPolicy

_START_POLL_S = 0.1
_STOP_POLL_S = 0.05
_KILL_WAIT_S = 5.0
_HURRIED_GRACE_S = 1.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class StackOptions:
    """restarts replaces stopping when a child dies after ready.

    A start may take any time as long as it moves: stall_s bounds the wait for a service that reports progress,
    silent_s for one that does not answer or reports none.
    """

    restarts: bool = False
    stall_s: float = 600.0
    silent_s: float = 120.0


class StopAsked(Exception):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StartProgress:
    """What the children said so far while starting; times come from the caller."""

    def __init__(self, options: StackOptions, started_s: float) -> None:
        self._options = options
        self._started_s = started_s
        self._moved_s = started_s
        self._waiting: dict[str, Probe] = {}

    def note(self, name: str, probe: Probe, now_s: float) -> None:
        """Take one look at one child into account."""
        before = self._waiting.get(name, Probe(False))
        if probe.is_ready or (probe.progress or 0.0) > (before.progress or 0.0):
            self._moved_s = now_s
        if probe.is_ready:
            self._waiting.pop(name, None)
        else:
            self._waiting[name] = probe

    def describe(self, now_s: float) -> str:
        """For the status line: who is awaited, how far, how long."""
        return f"{self._list()} · {format_duration(now_s - self._started_s)}"

    def raise_stalled(self, now_s: float) -> None:
        """Raises: LauncherError when nothing moved for too long."""
        reports = any(probe.progress is not None for probe in self._waiting.values())
        limit_s = self._options.stall_s if reports else self._options.silent_s
        if now_s - self._moved_s > limit_s:
            raise LauncherError(f"the start does not move for {format_duration(limit_s)}; waiting for {self._list()}")

    def _list(self) -> str:
        words = []
        for name, probe in self._waiting.items():
            share = f" {probe.progress:.0%}" if probe.progress is not None else ""
            words.append(f"{name}{share}" + (f" ({probe.message})" if probe.message else ""))
        return ", ".join(words)


class Stack:
    """Children in start order; they stop in the opposite order."""

    def __init__(
        self,
        children: Sequence[Child],
        reporter: Reporter,
        options: StackOptions,
        *,
        on_change: Callable[[str], None],
        on_ready: Callable[[float], None],
    ) -> None:
        """on_change is told the phase whenever it or a pid changes; on_ready how many seconds the start took."""
        self._children = list(children)
        self._reporter = reporter
        self._options = options
        self._on_change = on_change
        self._on_ready = on_ready
        self._inbox: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._restart_at_s: dict[str, float] = {}
        self._policies = {child.name: RestartPolicy() for child in self._children}

    def run(self) -> int:
        """Everything from start to stop; returns 0 after an asked-for stop, 128 + signal when asked before ready.

        Raises: LauncherError with a child's reason when one died; by then everything is stopped.
        """
        was_ready = False
        with self._signals():
            try:
                self._start()
                was_ready = True
                self._watch()
            except StopAsked as asked:
                self._reporter.status("stopping", f"({asked})")
                return 0 if was_ready else 128 + asked.number
            finally:
                self._stop()
        raise AssertionError("watching ends by an exception only")

    def _start(self) -> None:
        started_s = time.monotonic()
        for child in self._children:
            child.start()
        self._on_change("starting")
        self._await_ready(started_s)
        self._on_change("ready")
        self._on_ready(time.monotonic() - started_s)

    def _await_ready(self, started_s: float) -> None:
        progress = StartProgress(self._options, started_s)
        while True:
            self._raise_stop(timeout_s=_START_POLL_S)
            self._raise_death()
            for child in self._children:
                if not child.is_ready:
                    probe = child.spec.probe()
                    child.is_ready = probe.is_ready
                    progress.note(child.name, probe, time.monotonic())
                    if probe.is_final:
                        raise LauncherError(f"{child.name} cannot become ready: {probe.message}")
            if all(child.is_ready for child in self._children):
                return
            self._reporter.status("starting:", progress.describe(time.monotonic()))
            progress.raise_stalled(time.monotonic())

    def _watch(self) -> None:
        while True:
            self._raise_stop(timeout_s=self._next_timeout_s())
            for child in self._children:
                end = child.collect_end()
                if end is not None:
                    self._plan_restart(child, end)
            self._start_due()
            for child in self._children:
                if child.is_running and not child.is_ready and child.spec.probe().is_ready:
                    child.is_ready = True
                    self._reporter.line(f"{child.name} is ready again")

    def _plan_restart(self, child: Child, end: ChildEnd) -> None:
        if not self._options.restarts:
            raise LauncherError(end.reason)
        delay_s = self._policies[child.name].next_delay_s(time.monotonic())
        if delay_s is None:
            raise LauncherError(f"{end.reason}; {RestartPolicy.EXHAUSTED}")
        self._reporter.line(f"{end.reason}; starting it again in {delay_s:g} s")
        self._restart_at_s[child.name] = time.monotonic() + delay_s
        self._on_change("ready")

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if self._restart_at_s.get(child.name, now_s + 1.0) <= now_s:
                del self._restart_at_s[child.name]
                child.start()
                self._on_change("ready")

    def _next_timeout_s(self) -> float | None:
        if any(child.is_running and not child.is_ready for child in self._children):
            return _START_POLL_S
        if self._restart_at_s:
            return max(0.0, min(self._restart_at_s.values()) - time.monotonic())
        return None

    def _raise_stop(self, *, timeout_s: float | None) -> None:
        with contextlib.suppress(queue.Empty):
            number = self._inbox.get(timeout=timeout_s)
            if number in _STOP_SIGNALS:
                raise StopAsked(number)

    def _raise_death(self) -> None:
        for child in self._children:
            end = child.collect_end()
            if end is not None:
                refused = end.returncode == EXIT_REFUSED
                raise LauncherError(end.reason, exit_code=EXIT_REFUSED if refused else EXIT_FAILED)

    def _stop(self) -> None:
        """Last started first; a grace period that ends kills, a second Ctrl-C does and shortens the rest."""
        if any(child.is_running for child in self._children):
            self._on_change("stopping")
        is_patient = True
        for child in reversed(self._children):
            child.send_stop()
            grace_s = child.spec.grace_s if is_patient else min(child.spec.grace_s, _HURRIED_GRACE_S)
            is_patient = self._await_end(child, grace_s) and is_patient
            if child.is_running:
                self._reporter.line(f"{child.name} does not stop, killing it")
                child.kill()
        deadline_s = time.monotonic() + _KILL_WAIT_S
        while any(child.is_running for child in self._children) and time.monotonic() < deadline_s:
            for child in self._children:
                child.collect_end()
            time.sleep(_STOP_POLL_S)

    def _await_end(self, child: Child, grace_s: float) -> bool:
        """Wait for a child to end; False when a signal asked to hurry."""
        deadline_s = time.monotonic() + grace_s
        while child.collect_end() is None and child.is_running and time.monotonic() < deadline_s:
            try:
                self._raise_stop(timeout_s=_STOP_POLL_S)
            except StopAsked:
                return False
        return True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def remember(number: int, _frame: FrameType | None) -> None:
            self._inbox.put(number)

        numbers = [*_STOP_SIGNALS, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)  # nohup: the person wants it to outlive the terminal
        before = {number: signal.signal(number, remember) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
