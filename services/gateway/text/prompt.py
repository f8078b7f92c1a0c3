"""Messages to prompt ids: guard, render, split at control tokens, encode. Owns the order of these four steps.

Receives the internal messages, hands on ids in which every control token comes from the template. Without user text
that touches a control token the ids equal those of the plain rendering.
"""

from collections.abc import Sequence

from contracts.errors import ContextTooLong
from gateway.conversation import Message
from gateway.text.control import ControlText, control_positions, draw_mark
from gateway.text.template import ChatTemplate
from gateway.text.tokenizer import TextTokenizer

# Templates of this kind take a string, so parts are joined; the newline keeps separately sent blocks apart.
_PART_SEPARATOR = "\n"


class PromptEncoder:
    """Template and tokenizer of one model as one function; safe to call from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: TextTokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._control = ControlText(tokenizer.control_ids)

    def encode(self, messages: Sequence[Message], window: int | None = None) -> list[int]:
        """Prompt ids up to and including the assistant's opening.

        Raises: InvalidRequest when the template refuses the messages; ContextTooLong, with a proven lower bound, when
        the text is so long that no encoding of it fits into window.
        """
        if window is not None:
            self._refuse_hopeless(messages, window)
        mark = draw_mark()
        guarded = [
            {"role": message.role, "content": self._control.guard(_PART_SEPARATOR.join(message.parts), mark)}
            for message in messages
        ]
        pieces = self._control.split(self._template.render(guarded), mark)
        num_control = len(control_positions(pieces))
        if window is not None and num_control >= window:
            raise ContextTooLong(num_control, window, param="messages")
        return self._encode_pieces(pieces)

    def _refuse_hopeless(self, messages: Sequence[Message], window: int) -> None:
        # Templates show every message, trimmed at most, so the bound holds before the work of rendering.
        fewest = self._tokenizer.fewest_ids(sum(len(part.strip().encode()) for m in messages for part in m.parts))
        if fewest >= window:
            raise ContextTooLong(fewest, window, param="messages")

    def _encode_pieces(self, pieces: list[str]) -> list[int]:
        plain = self._tokenizer.encode_plain(pieces[::2])
        ids = list(plain[0])
        for index, after in zip(control_positions(pieces), plain[1:], strict=True):
            ids.append(self._tokenizer.control_ids[pieces[index]])
            ids += after
        return ids
