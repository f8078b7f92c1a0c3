"""What the runtime needs of whatever computes tokens. A fused executor replaces the reference one by this shape.

Owns the protocol and its promises about bits; computes nothing.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.state.checkpoints import StateImage

__all__ = ["Executor", "Hidden", "Logits", "MtpHead", "StateImage"]

Logits = NDArray[np.float32]
Hidden = NDArray[np.float32]
"""One position's residual stream behind the final norm [C]."""


class MtpHead(Protocol):
    """A multi-token-prediction head beside its executor. What it holds never changes a token, only guesses.

    Rows of the head's own cache for positions that the target computed are the executor's business: it fills them from
    the target's hidden states, in prefill as well.
    """

    @property
    def hidden(self) -> Hidden:
        """The target's hidden state at position num_tokens - 1; after a prefill with logits, a step, a rollback."""

    def draft_logits(self, hidden: Hidden, token_id: int) -> tuple[Logits, Hidden]:
        """The head's view of what follows token_id, which follows the position that hidden is of.

        A round's first call passes the property `hidden` and the pending token (the id of position num_tokens); each
        later call passes what the call before returned and its guess. Calls in a row stand for consecutive positions;
        the next prefill, step, step_many, rewind or restore ends the round and forgets its rows.
        Shapes:  returns [vocab] logits, valid until the next call, and the head's normalised output [C].
        """


class Executor(Protocol):
    """Computes positions in order and owns their state. Not thread-safe: one worker uses it.

    A position's bits are a function of ids and modes alone. Modes: *chunk*, a whole 64-block of the absolute grid in
    prefill; *tail*, positions of a block that one prefill call does not fill; *step*, a position computed by step or
    step_many. Cutting a prefill into calls on the grid changes no bits, neither does cutting a tail; an executor may
    give several modes the same bits.
    """

    @property
    def name(self) -> str:
        """What `/v1/info` calls it."""

    @property
    def num_tokens(self) -> int:
        """Positions whose state is held; the next call computes the position of this number."""

    @property
    def max_columns(self) -> int:
        """The most ids one step_many takes: one and the planned drafts."""

    @property
    def shares_columns(self) -> bool:
        """Whether step_many costs less than that many steps; where not, a draft cannot save time."""

    @property
    def can_rewind(self) -> bool:
        """Whether rewind reaches every earlier position. Where not, images are the way back and are worth keeping."""

    @property
    def mtp(self) -> MtpHead | None:
        """The multi-token-prediction head, if its weights are loaded; may be the executor itself."""

    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool) -> Logits | None:
        """Compute the next len(ids) positions; returns the last one's logits if wanted, valid until the next call."""

    def step(self, token_id: int) -> Logits:
        """Compute the next position; returns its logits, valid until the next call."""

    def step_many(self, ids: NDArray[np.int64]) -> Logits:
        """Compute the next M positions in step mode: rows and state have the bits that M single steps give.

        rollback must follow before any other call that computes or reads state.
        Shapes:  ids [M], 1 <= M <= max_columns; returns [M, vocab], valid until the next step, step_many or prefill.
        """

    def rollback(self, num_kept: int) -> None:
        """Keep the first num_kept positions of the step_many before, as if the others had never been computed.

        Domain:  0 <= num_kept <= M. Once per step_many.
        """

    def rewind(self, num_tokens: int) -> int:
        """Forget every position from num_tokens on.

        Returns the position it got to: num_tokens, or 0 where can_rewind is false and num_tokens is not where it is.
        rewind(0) is a new start and legal at any time, also between step_many and rollback and after an error.
        """

    def snapshot(self) -> StateImage:
        """Copy the state as it is now, at num_tokens."""

    def restore(self, image: StateImage) -> None:
        """Go to an image's position, back or forward.

        The caller knows that the rows of keys and values below it are those of the image's timeline.
        """
