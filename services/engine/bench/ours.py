"""Our side of the speed benchmark: requests to a real engine, timed where their events arrive."""

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contracts.errors import ServiceError
from contracts.generate import Event, Failed, Finished, GenerateRequest, Sampling, TokenId, Tokens
from engine.bench.contender import Work
from engine.engine import Engine
from engine.settings import EngineConfig, EngineSettings
from engine.spec import ModelSpec
from engine.startup import load_engine, plan_engine

_NEVER_DRAWN = -100.0


class OurEngine:
    """An engine with default settings, without speculation: peers decode one token at a time as well."""

    def __init__(self, home: Path, spec: ModelSpec, threads: int) -> None:
        """Raises: SetupError when the model is not there."""
        settings = EngineSettings(model=spec.name, threads=threads, speculation="off")
        self._engine: Engine = load_engine(
            plan_engine(EngineConfig(settings, home, None), spec), lambda _: None, lambda: None
        )
        self._num_requests = 0
        info = self._engine.info()
        self.executor = info.executor
        self.kv_format = info.kv_format
        # The model's own end would cut a round short.
        self._sampling = Sampling(temperature=0.0, logit_bias=dict.fromkeys(info.stop_token_ids, _NEVER_DRAWN))

    def prefill_tok_s(self, work: Work) -> float:
        """Submit to first token: queue, hand-over, prefill, head and one draw."""
        started_s = time.perf_counter()
        arrivals_s = list(self._arrivals_s(work.prefill_ids, 1))
        return len(work.prefill_ids) / (arrivals_s[0] - started_s)

    def decode_tok_s(self, work: Work) -> float:
        """First token to last, as they arrive at the request's sink."""
        arrivals_s = list(self._arrivals_s(work.decode_ids, work.num_new_tokens))
        return (len(arrivals_s) - 1) / (arrivals_s[-1] - arrivals_s[0])

    def close(self) -> None:
        """Stop the worker."""
        self._engine.close(10.0)

    def _arrivals_s(self, ids: NDArray[np.int64], num_new_tokens: int) -> Iterator[float]:
        """When each generated token arrived."""
        self._num_requests += 1
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request = GenerateRequest(
            request_id=f"bench-{self._num_requests}",
            token_ids=[TokenId(int(token_id)) for token_id in ids],
            max_new_tokens=num_new_tokens,
            sampling=self._sampling,
        )
        self._engine.submit(request, events.put)
        while not isinstance(event := events.get(), Finished):
            if isinstance(event, Failed):
                raise ServiceError(f"the engine failed: {event.message}")
            if isinstance(event, Tokens):
                yield time.perf_counter()
