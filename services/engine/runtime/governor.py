"""Whether drafting pays, from the clock: seconds a token with drafts against seconds a token without.

Owns moving averages and the decision round by round. It sees no token, so it cannot change one.
"""

import logging
from dataclasses import dataclass

_LOG = logging.getLogger("engine")
_NEW_WEIGHT = 1 / 16
_TRIAL_ROUNDS = 16  # drafted rounds before they are judged
_PLAIN_ROUNDS = 4  # rounds without drafts that must be known before anything is compared
_PROBE_ROUNDS = 64  # drafted rounds after which one without shows what a token costs now
_FIRST_REST_TOKENS = 256
_LONGEST_REST_TOKENS = 4096


@dataclass(slots=True)
class _Average:
    """Moving averages over rounds of one kind; a ratio of averages, because rounds differ in tokens."""

    rounds: int = 0
    duration_s: float = 0.0
    tokens: float = 0.0

    def add(self, duration_s: float, num_tokens: int) -> None:
        self.rounds += 1
        weight = max(_NEW_WEIGHT, 1.0 / self.rounds)
        self.duration_s += weight * (duration_s - self.duration_s)
        self.tokens += weight * (num_tokens - self.tokens)

    @property
    def per_token_s(self) -> float:
        return self.duration_s / self.tokens


class Governor:
    """Stops drafting when it measures that a token costs more with drafts, and tries again later, ever more rarely."""

    def __init__(self) -> None:
        self._plain = _Average()
        self._drafted = _Average()
        self._rounds_since_plain = 0
        self._rest_tokens = 0
        self._next_rest_tokens = _FIRST_REST_TOKENS

    def wants_drafts(self) -> bool:
        """Whether the next round should draft."""
        if self._rest_tokens > 0 or self._plain.rounds < _PLAIN_ROUNDS:
            return False
        return self._rounds_since_plain < _PROBE_ROUNDS

    def record(self, num_drafts: int, num_tokens: int, duration_s: float) -> None:
        """Learn from a round that took duration_s and gave num_tokens; num_drafts 0 is a round without drafts."""
        if num_drafts == 0:
            self._plain.add(duration_s, num_tokens)
            self._rounds_since_plain = 0
            self._rest_tokens = max(0, self._rest_tokens - num_tokens)
            return
        self._drafted.add(duration_s, num_tokens)
        self._rounds_since_plain += 1
        if self._drafted.rounds >= _TRIAL_ROUNDS:
            self._judge()

    def _judge(self) -> None:
        drafted_s, plain_s = self._drafted.per_token_s, self._plain.per_token_s
        if drafted_s <= plain_s:
            self._next_rest_tokens = _FIRST_REST_TOKENS
            return
        _LOG.info(
            "no drafts for %d tokens: %.2f ms a token with them (%.2f tokens a round), %.2f ms without",
            self._next_rest_tokens, 1e3 * drafted_s, self._drafted.tokens, 1e3 * plain_s,
        )  # fmt: skip
        self._rest_tokens = self._next_rest_tokens
        self._next_rest_tokens = min(2 * self._next_rest_tokens, _LONGEST_REST_TOKENS)
        self._drafted = _Average()
