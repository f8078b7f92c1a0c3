"""A request's stop flag: anyone may raise it, the worker looks at it between chunks and between tokens."""

import threading
from typing import Literal

from contracts.errors import ServiceError

Ending = Literal["cancelled", "preempted"] | ServiceError


class Interrupt:
    """Holds why the request must end; the first reason stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: Ending | None = None

    @property
    def ending(self) -> Ending | None:
        """The reason, None while the request may go on."""
        return self._ending

    def fire(self, ending: Ending) -> None:
        """Ask the request to end."""
        with self._lock:
            if self._ending is None:
                self._ending = ending
