"""Control tokens and the text around them: finds them in a rendered prompt, keeps user text from forming one.

Owns the rule that a control token comes only from a template literal. guard() puts an unguessable mark inside any
stretch of user text that is, or at its edge could become, a control token; split() finds the tokens that remain, which
are the template's own, and removes the marks. Text without such a stretch passes through untouched. Does not encode.
"""

import re
import secrets
from collections.abc import Iterable, Sequence

_NUM_MARK_DIGITS = 30


class ControlText:
    """The texts of one model's control tokens, matched as the tokenizer does: leftmost, then longest."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted(set(texts), key=lambda text: (-len(text), text)))
        assert all(len(text) >= 2 for text in self.texts), "a control token of one character cannot be guarded"
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or "(?!)")
        self._heads = {text[:end] for text in self.texts for end in range(1, len(text))}
        self._tails = {text[start:] for text in self.texts for start in range(1, len(text))}
        self._middles = {
            text[start:end]
            for text in self.texts
            for start in range(1, len(text))
            for end in range(start + 1, len(text))
        }
        self._max_chars = max(map(len, self.texts), default=0)

    def guard(self, text: str, mark: str) -> str:
        """text with marks where it contains a control token or could complete one with what stands beside it.

        Blank edges stay outermost, so a template may still trim; a mark never touches text that needs none.
        """
        if self._pattern.search(text) is not None:
            text = self._pattern.sub(lambda match: mark.join(match[0]) + mark, text)
        core = text.strip()
        if not core:
            return text
        opens, closes = self._edges(core)
        if not opens and not closes:
            return text
        start = text.index(core[0])
        before, after = text[:start], text[start + len(core) :]
        return f"{before}{mark if opens else ''}{core}{mark if closes else ''}{after}"

    def split(self, rendered: str, mark: str) -> list[str]:
        """Alternating plain text and control token texts, plain first and last (possibly empty), without marks."""
        pieces: list[str] = []
        end = 0
        for match in self._pattern.finditer(rendered):
            pieces.append(rendered[end : match.start()].replace(mark, ""))
            pieces.append(match[0])
            end = match.end()
        pieces.append(rendered[end:].replace(mark, ""))
        return pieces

    def _edges(self, core: str) -> tuple[bool, bool]:
        if core in self._middles:
            return True, True
        ends = range(1, min(self._max_chars, len(core) + 1))
        opens = any(core[:end] in self._tails for end in ends)
        closes = any(core[-end:] in self._heads for end in ends)
        return opens, closes


def draw_mark() -> str:
    """A fresh mark: private-use brackets around random digits, so that no case or JSON filter changes it."""
    return f"\ue000{secrets.randbelow(10**_NUM_MARK_DIGITS):0{_NUM_MARK_DIGITS}d}\ue001"


def control_positions(pieces: Sequence[str]) -> range:
    """Where split() put the control token texts."""
    return range(1, len(pieces), 2)
