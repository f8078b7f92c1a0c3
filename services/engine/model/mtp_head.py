"""The multi-token-prediction head: guesses the token after next from a hidden state and the next token.

Owns its layer's rows of the cache: row p stands for the pair (hidden state of position p, token at p + 1). Rows of
computed positions come from the decoder's own hidden states; a round of drafts writes rows behind them that the next
round writes again. Nothing here changes a token, only guesses.

Pairs wait until a row is wanted or many have gathered, then they are computed in one batch.
"""

from typing import Final

import numpy as np
import torch

from engine.memory.arena import Arena
from engine.model.expanded import MtpMatrices
from engine.model.layer import LayerBuilder
from engine.model.positions import Positions
from engine.model.reserve import MAX_PENDING_PAIRS, MtpHandles
from engine.model.span import make_span
from engine.weights.tensors import MtpWeights


class MtpHead:
    """Follows the decoder's sequence; every hidden state is one behind the final norm."""

    def __init__(
        self, builder: LayerBuilder, weights: MtpWeights, matrices: MtpMatrices, arena: Arena, handles: MtpHandles
    ) -> None:
        """Effects: zeroes the waiting rows."""
        self._dims: Final = builder.spec.attention
        self._workspace: Final = builder.workspace
        self._embedding_norm: Final = builder.norm(weights.embedding_norm)
        self._hidden_norm: Final = builder.norm(weights.hidden_norm)
        self._final_norm: Final = builder.norm(weights.final_norm)
        self._projection: Final = matrices.projection
        self._layer: Final = builder.mtp_layer(weights.layer, matrices.layer)
        self._hidden = arena.tensor(handles.hidden).zero_()  # [P + 1, C]: of positions first .. first + waiting - 1
        self._embedded = arena.tensor(handles.embedded).zero_()  # [P + 1, C]: of the tokens that follow them
        self._positions: Positions = np.zeros((3, self._hidden.shape[0]), dtype=np.int64)
        self._first = 0
        self._num_waiting = 0  # hidden states; the last one's token is not known yet
        self._num_drafted = 0

    @property
    def hidden(self) -> torch.Tensor:
        """The last computed position's hidden state [C]."""
        assert self._num_waiting > 0, "no position is computed"
        return self._hidden[self._num_waiting - 1]

    def observe(self, embedded: torch.Tensor, hidden: torch.Tensor, positions: Positions) -> None:
        """The decoder computed its next T positions, or ended a round without any; drafted rows are forgotten.

        Shapes:  embedded, hidden [T, C]; positions [3, T].
        """
        self._num_drafted = 0
        num_rows = hidden.shape[0]
        if num_rows == 0:
            return
        if self._num_waiting + num_rows > self._hidden.shape[0]:
            self.flush()
        held = self._num_waiting
        if held:
            self._embedded[held - 1 : held - 1 + num_rows] = embedded
        else:  # nothing comes before the sequence's first token
            self._embedded[: num_rows - 1] = embedded[1:]
        self._hidden[held : held + num_rows] = hidden
        self._positions[:, held : held + num_rows] = positions
        self._num_waiting = held + num_rows
        if self._num_waiting > MAX_PENDING_PAIRS:
            self.flush()

    def flush(self) -> None:
        """Compute the rows of all pairs that are complete."""
        num_pairs = self._num_waiting - 1
        if num_pairs > 0:
            self._feed(num_pairs)
            self._drop_pairs(num_pairs)

    def draft(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The head's output [C] for one more pair: at first the last position's, then one position further each call.

        Shapes:  hidden, embedded [C].
        """
        last = self._num_waiting - 1
        assert last >= 0, "no position is computed"
        if self._num_drafted == 0:
            self._hidden[last], self._embedded[last] = hidden, embedded
            output = self._feed(last + 1)[last]
            self._drop_pairs(last)
        else:
            positions = self._positions[:, last : last + 1] + self._num_drafted
            start = self._first + last + self._num_drafted
            output = self._run(hidden[None], embedded[None], positions, start)[0]
        self._num_drafted += 1
        return output

    def copy_out(self) -> torch.Tensor:
        """A copy in host memory of what restore needs: hidden [C], zeros while the sequence is empty."""
        self.flush()
        last = self.hidden if self._num_waiting else torch.zeros_like(self._hidden[0])
        return last.to("cpu", copy=True)

    def end_round(self) -> None:
        """Forget the drafted rows."""
        self._num_drafted = 0

    def clear(self) -> None:
        """The sequence is empty."""
        self._first = self._num_waiting = self._num_drafted = 0

    def restore(self, num_tokens: int, hidden: torch.Tensor, next_position: int) -> None:
        """The sequence has num_tokens positions, the last one with this hidden state [C]; the rows are in place."""
        self.clear()
        if num_tokens == 0:
            return
        self._first, self._num_waiting = num_tokens - 1, 1
        self._hidden[0] = hidden
        self._positions[:, 0] = next_position - 1

    def _feed(self, num_pairs: int) -> torch.Tensor:
        """Compute the first waiting pairs; returns their outputs [T, C]."""
        return self._run(
            self._hidden[:num_pairs], self._embedded[:num_pairs], self._positions[:, :num_pairs], self._first
        )

    def _drop_pairs(self, num_pairs: int) -> None:
        self._hidden[0] = self._hidden[num_pairs].clone()
        self._positions[:, 0] = self._positions[:, num_pairs]
        self._first += num_pairs
        self._num_waiting -= num_pairs

    def _run(self, hidden: torch.Tensor, embedded: torch.Tensor, positions: Positions, start: int) -> torch.Tensor:
        num_rows = hidden.shape[0]
        where = torch.from_numpy(np.ascontiguousarray(positions)).to(hidden.device)
        span = make_span("batch", self._dims, self._workspace, start, where, num_rows)
        joined = torch.cat((self._embedding_norm(embedded), self._hidden_norm(hidden)), dim=1)
        self._projection.multiply(joined, span.rows.residual)
        self._layer.run(span)
        return self._final_norm(span.rows.residual)
