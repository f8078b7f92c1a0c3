"""The token budget of one request: what the prompt leaves of the window, and what the request will cost the engine.

Owns the exact check before any header and the clamp of the output limit. Receives counts, hands on numbers; knows no
text and no HTTP.
"""

from dataclasses import dataclass

from contracts.engine_info import Rates
from contracts.errors import ContextTooLong

# Until an engine has measured itself; small enough that a first request is not thought to be free.
ASSUMED_PREFILL_TOK_S = 500.0
ASSUMED_DECODE_TOK_S = 30.0
# Agents ask for tens of thousands of tokens and use a few hundred; the settled cost corrects this guess.
EXPECTED_REPLY_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens: prompt + max_new_tokens never exceeds the window; clamped when the client wanted more than fits."""

    prompt_tokens: int
    max_new_tokens: int
    window: int
    clamped: bool


def plan_budget(prompt_tokens: int, window: int, wanted: int | None) -> Budget:
    """The output limit to run with; wanted None means all that fits.

    Raises: ContextTooLong when the prompt leaves no room for one token.
    """
    room = window - prompt_tokens
    if room < 1:
        raise ContextTooLong(prompt_tokens, window, param="messages")
    max_new_tokens = room if wanted is None else min(wanted, room)
    return Budget(prompt_tokens, max_new_tokens, window, clamped=wanted is not None and wanted > room)


def estimate_cost_s(budget: Budget, rates: Rates) -> float:
    """Engine-seconds the request will take if nothing of its prompt is cached."""
    prefill_s = budget.prompt_tokens / (rates.prefill_tok_s or ASSUMED_PREFILL_TOK_S)
    decode_s = min(budget.max_new_tokens, EXPECTED_REPLY_TOKENS) / (rates.decode_tok_s or ASSUMED_DECODE_TOK_S)
    return prefill_s + decode_s
