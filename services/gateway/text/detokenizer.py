"""Token ids to text while they arrive. Owns the bytes of an unfinished character, which are held until it is whole.

The concatenated output equals the decoding of all bytes at once, however the ids are split into calls; bytes that can
be no character become U+FFFD, and an unfinished character at the end is never shown.
"""

import codecs
from collections.abc import Sequence

from contracts.errors import ServiceError


class Detokenizer:
    """One reply's decoder; token_bytes maps an id to its bytes, hidden ids ("" in the reply) given apart."""

    def __init__(self, token_bytes: Sequence[bytes], hidden_ids: frozenset[int] = frozenset()) -> None:
        self._token_bytes = token_bytes
        self._hidden_ids = hidden_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids complete.

        Raises: ServiceError when an id is not in the tokenizer, which means that the engine runs another model.
        """
        table, hidden = self._token_bytes, self._hidden_ids
        try:
            joined = b"".join([table[token_id] for token_id in ids if token_id not in hidden])
        except IndexError as error:
            raise ServiceError(f"the engine sent token id {max(ids)}, the tokenizer has {len(table)}") from error
        return self._decoder.decode(joined)
