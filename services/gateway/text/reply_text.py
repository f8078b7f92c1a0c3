"""From token events to what a client may see: bytes, characters, stop strings. Owns the order of these steps.

Receives ids and log probabilities as the engine sends them, hands on deltas. Its output is a function of the whole
token sequence: how the engine grouped tokens into events changes where deltas end, never their sum.
"""

from collections.abc import Sequence

from contracts.generate import TokenLogprob, Tokens
from gateway.reply import ReplyDelta, TokenChoice
from gateway.text.detokenizer import Detokenizer
from gateway.text.stop import StopMatcher
from gateway.text.tokenizer import TextTokenizer


class ReplyText:
    """One reply's text; num_tokens counts the tokens used, up to the stop string when one ended it."""

    def __init__(
        self, tokenizer: TextTokenizer, *, stop_ids: frozenset[int], stops: Sequence[str], with_choices: bool
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._stop_ids = stop_ids
        self._detokenizer = Detokenizer(tokenizer.token_bytes, stop_ids)
        self._matcher = StopMatcher(stops)
        self._with_choices = with_choices
        self._by_token = with_choices or bool(stops)
        self._decoded_chars = 0
        self._released_chars = 0
        self._pending: list[tuple[int, TokenChoice]] = []
        self.num_tokens = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply."""
        return self._matcher.matched

    def feed(self, tokens: Tokens) -> ReplyDelta | None:
        """What these tokens release, None when nothing; tokens behind a stop string are not looked at."""
        if not self._by_token:
            self.num_tokens += len(tokens.ids)
            text = self._detokenizer.feed(tokens.ids)
            return ReplyDelta(text) if text else None
        logprobs: Sequence[TokenLogprob | None] = tokens.logprobs or [None] * len(tokens.ids)
        released = "".join(
            self._feed_token(token_id, logprob)
            for token_id, logprob in zip(tokens.ids, logprobs, strict=True)
            if self._matcher.matched is None
        )
        return self._release(released)

    def finish(self) -> ReplyDelta | None:
        """What was still held when the engine ended the reply."""
        return self._release(self._matcher.finish()) if self._by_token else None

    def _feed_token(self, token_id: int, logprob: TokenLogprob | None) -> str:
        self.num_tokens += 1
        if self._with_choices and logprob is not None and token_id not in self._stop_ids:
            self._pending.append((self._decoded_chars, self._choice(token_id, logprob)))
        text = self._detokenizer.feed((token_id,))
        self._decoded_chars += len(text)
        return self._matcher.feed(text)

    def _release(self, text: str) -> ReplyDelta | None:
        if not text:
            return None
        self._released_chars += len(text)
        count = sum(start < self._released_chars for start, _ in self._pending)
        choices = tuple(choice for _, choice in self._pending[:count])
        del self._pending[:count]
        return ReplyDelta(text, choices)

    def _choice(self, token_id: int, logprob: TokenLogprob) -> TokenChoice:
        table = self._token_bytes
        top = tuple((table[other], value) for other, value in logprob.top if other < len(table))
        return TokenChoice(table[token_id] if token_id < len(table) else b"", logprob.logprob, top)
