"""A request that passed validation, as the runtime runs it. Owns the shape; validate.py makes it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contracts.generate import GenerateRequest
from engine.runtime.interrupt import Interrupt


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What to generate.

    max_tokens counts output from output_start on and is clamped to the window; arrived_s is monotonic.
    """

    request: GenerateRequest
    ids: NDArray[np.int64]
    output_start: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    guards_repetition: bool
    interrupt: Interrupt
    arrived_s: float
