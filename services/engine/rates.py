"""How fast this engine is, learned from its own requests. Owns two moving averages; None until there is a reading."""

from engine.runtime.generation import Generation

_NEW_WEIGHT = 0.2
_MIN_PREFILL_TOKENS = 64  # shorter ones measure the call, not the rate
_MIN_DECODE_TOKENS = 8


class RateMeter:
    """Tokens a second of prefill and decode; written by one thread, read by any."""

    def __init__(self) -> None:
        self.prefill_tok_s: float | None = None
        self.decode_tok_s: float | None = None

    def record(self, generation: Generation) -> None:
        """Learn from a request that ended."""
        if generation.num_computed >= _MIN_PREFILL_TOKENS and generation.prefill_s > 0.0:
            self.prefill_tok_s = _blend(self.prefill_tok_s, generation.num_computed / generation.prefill_s)
        if generation.num_new >= _MIN_DECODE_TOKENS and generation.decode_s > 0.0:
            self.decode_tok_s = _blend(self.decode_tok_s, (generation.num_new - 1) / generation.decode_s)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _NEW_WEIGHT * (new - old)
