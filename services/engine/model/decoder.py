"""The reference executor: the whole forward pass, operator by operator in torch fp32, driven by ModelSpec.schedule.

Owns the order of layers, which rows a pass computes and in which mode. Receives token ids, hands on logits. It keeps no
ids and decides no chunk; state is in the cache, the delta states and the MTP head.

Modes, because the library adds up one row in another order than many (docs/notes/engine.md). Without recurrent state
prompts are computed in batches of at least sixteen rows, in which a row's neighbours do not change its sums; generated
tokens alone. With it, whole blocks of the 64-token grid are computed one by one, all else row by row: the same bits for
the same ids and modes on every host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from contracts.errors import NumericalError, SetupError
from engine.memory.arena import Arena
from engine.model.expanded import expand_weights
from engine.model.layer import LayerBuilder
from engine.model.mtp_head import MtpHead
from engine.model.positions import text_positions
from engine.model.reserve import MIN_BATCH_ROWS, DecoderHandles
from engine.model.span import GRID_TOKENS, Mode, make_span
from engine.model.vision_rows import VisionRows
from engine.model.workspace import Workspace
from engine.ops.linear import take_rows
from engine.spec import ModelSpec
from engine.state.checkpoints import StateImage
from engine.state.image import HostImage
from engine.state.kv_cache import open_caches, set_centres
from engine.state.recurrent import DeltaStates
from engine.weights.centres import KvCentres
from engine.weights.tensors import DecoderWeights

EXECUTOR_NAME = "reference"
_CONV_WIDTH = 4

Logits = NDArray[np.float32]


def require_runnable(spec: ModelSpec) -> None:
    """Refuse what the schedule or the dims ask for and this version lacks.

    Raises: SetupError naming it.
    """
    if spec.delta is not None and spec.delta.conv_width != _CONV_WIDTH:
        raise SetupError(f"{spec.name} has convolutions {spec.delta.conv_width} wide, this version runs {_CONV_WIDTH}")
    if spec.mtp_layers not in (0, 1):
        raise SetupError(f"{spec.name} has {spec.mtp_layers} draft layers, this version runs at most 1")


class Decoder:
    """Runs token ids through the model. Positions below num_tokens are computed and stay so until rewind."""

    shares_columns: ClassVar[bool] = False  # one row after the other, as single steps, for the same bits

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        arena: Arena,
        handles: DecoderHandles,
        centres: KvCentres | None = None,
    ) -> None:
        """centres None are zeros. Effects: fills the expanded regions; takes a second for 135 M weights."""
        require_runnable(spec)
        self.name: Final = f"{EXECUTOR_NAME}-{arena.device.type}"
        self._spec = spec
        self._device = arena.device
        self._embedding = weights.embedding
        self._workspace = Workspace(arena, handles.workspace)
        self._cache, mtp_cache = open_caches(arena, handles.cache)
        if centres is not None:
            set_centres(torch.from_numpy(centres.keys), torch.from_numpy(centres.values), self._cache, mtp_cache)
        self._states: DeltaStates | None = None
        if handles.state is not None and handles.replay is not None:
            self._states = DeltaStates(arena, handles.state, handles.replay)
        matrices = expand_weights(weights, arena, handles.expanded)
        builder = LayerBuilder(spec, self._workspace, self._cache, mtp_cache, self._states)
        self._layers = builder.layers(weights.layers, matrices.layers)
        self._final_norm = builder.norm(weights.final_norm)
        self._head = matrices.head
        self._mtp: MtpHead | None = None
        self._mtp_logits: torch.Tensor | None = None  # [1, vocab]
        if handles.mtp is not None and weights.mtp is not None and matrices.mtp is not None:
            self._mtp = MtpHead(builder, weights.mtp, matrices.mtp, arena, handles.mtp)
            self._mtp_logits = arena.tensor(handles.mtp.logits).zero_()
        self.can_rewind: Final = self._states is None
        self.max_columns: Final[int] = self._workspace.logits.shape[0]
        self._next_position = 0  # the rotary position of the next text token
        self._proposed: _Proposed | None = None

    @property
    def num_tokens(self) -> int:
        """Positions whose state is held."""
        return self._cache.num_tokens

    @property
    def mtp(self) -> "Decoder | None":
        """The MTP head, which is this object, where drafts by it are planned."""
        return None if self._mtp is None else self

    @property
    def hidden(self) -> NDArray[np.float32]:
        """The last position's hidden state [C] behind the final norm, for draft_logits."""
        assert self._mtp is not None, "no MTP head is planned"
        return _to_numpy(self._mtp.hidden.clone())

    @torch.inference_mode()
    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool, vision: VisionRows | None = None) -> Logits | None:
        """Compute a prompt's next positions.

        Shapes:  ids [T]; returns [vocab] fp32 of the last position if wanted, valid until the next call.
        """
        last: torch.Tensor | None = None
        for residual in self._prefill(ids, vision):
            last = residual[-1:]
        assert last is not None, "a prefill has at least one position"
        return self._logits(last) if want_logits else None

    @torch.inference_mode()
    def score(self, ids: NDArray[np.int64], vision: VisionRows | None = None) -> Logits:
        """As prefill, but returns the logits of every position, in memory of their own: for oracles.

        Shapes:  ids [T]; returns [T, vocab] fp32.
        """
        scores = np.empty((len(ids), self._spec.vocab_size), dtype=np.float32)
        rows = iter(scores)
        for residual in self._prefill(ids, vision):
            for row in torch.split(residual, 1):
                next(rows)[:] = self._logits(row)
        return scores

    @torch.inference_mode()
    def step(self, token_id: int) -> Logits:
        """Compute the next position alone.

        Shapes:  returns [vocab] fp32, valid until the next call.
        """
        return self._logits(self._run("step", np.array([token_id])))

    @torch.inference_mode()
    def step_many(self, ids: NDArray[np.int64]) -> Logits:
        """Compute the next positions as that many steps; rollback() follows.

        Shapes:  ids [M], M <= max_columns; returns [M, vocab] fp32, valid until the next step, step_many or prefill.
        """
        assert 1 <= len(ids) <= self.max_columns, f"{len(ids)} columns, planned are {self.max_columns}"
        residual = self._run("propose", ids)
        for column, row in enumerate(torch.split(residual, 1)):
            self._logits(row, column)
        self._proposed = _Proposed(ids.copy(), self._final_norm(residual) if self._mtp is not None else None)
        return _to_numpy(self._workspace.logits[: len(ids)])

    @torch.inference_mode()
    def rollback(self, num_kept: int) -> None:
        """Forget all but the first num_kept positions of the last step_many."""
        assert self._proposed is not None, "no round is open"
        ids, hidden = self._proposed.ids, self._proposed.hidden
        self._proposed = None
        assert 0 <= num_kept <= len(ids), f"{num_kept} of {len(ids)} columns"
        num_dropped = len(ids) - num_kept
        self._cache.commit(self._cache.num_tokens - num_dropped)
        self._next_position -= num_dropped
        if self._states is not None:
            self._states.commit(num_kept)
        if self._mtp is not None and hidden is not None:
            positions = text_positions(self._next_position - num_kept, num_kept)
            self._mtp.observe(self._embed(ids[:num_kept], None), hidden[:num_kept], positions)

    @torch.inference_mode()
    def rewind(self, num_tokens: int) -> int:
        """Forget positions from num_tokens on, or all of them where recurrent state cannot be cut; returns which."""
        reached = num_tokens if self.can_rewind or num_tokens == self.num_tokens else 0
        self._cache.truncate(reached)
        self._proposed = None
        if self._mtp is not None:
            self._mtp.end_round()
        if reached == 0:
            self._clear()
        elif self.can_rewind:
            self._next_position = reached
        return reached

    @torch.inference_mode()
    def snapshot(self) -> HostImage:
        """The state as it is, as an image in host memory."""
        assert self._proposed is None, "rollback comes first"
        position = self.num_tokens
        if self._states is None:
            return HostImage(position, self._next_position)
        hidden = None if self._mtp is None else self._mtp.copy_out()
        return HostImage(position, self._next_position, *self._states.copy_out(), hidden)

    @torch.inference_mode()
    def restore(self, image: StateImage) -> None:
        """Go to an image's position; its rows of keys and values are in place."""
        assert isinstance(image, HostImage), "an image of another executor"
        self._proposed = None
        self._cache.restore(image.position)
        self._clear()
        self._next_position = image.next_position
        if self._states is not None and image.recurrent is not None and image.conv is not None:
            self._states.copy_in(image.recurrent, image.conv)
        if self._mtp is not None and image.hidden is not None:
            self._mtp.restore(image.position, image.hidden, image.next_position)

    @torch.inference_mode()
    def draft_logits(self, hidden: NDArray[np.float32], token_id: int) -> tuple[Logits, NDArray[np.float32]]:
        """The MTP head's guess at what follows token_id, which follows the position that hidden is of.

        Shapes:  hidden [C]; returns [vocab] logits, valid until the next call, and the head's normalised output [C].
        """
        assert self._mtp is not None and self._mtp_logits is not None, "no MTP head is planned"
        assert self._proposed is None, "rollback comes first"
        embedded = self._embed(np.array([token_id]), None)[0]
        output = self._mtp.draft(torch.from_numpy(hidden).to(self._device), embedded)
        self._head.multiply(output[None], self._mtp_logits)
        return _to_numpy(self._mtp_logits[0]), _to_numpy(output)

    def _prefill(self, ids: NDArray[np.int64], vision: VisionRows | None) -> Iterator[torch.Tensor]:
        """Compute the spans of a prompt in order; yields the residual stream of each, overwritten by the next."""
        for mode, first, last in self._cuts(len(ids)):
            yield self._run(mode, ids[first:last], None if vision is None else vision.slice(first, last))

    def _cuts(self, num_tokens: int) -> Iterator[tuple[Mode, int, int]]:
        if self._states is None:
            yield "batch", 0, num_tokens
            return
        lead = min(num_tokens, -self.num_tokens % GRID_TOKENS)  # the rest of a block that is begun
        whole = lead + (num_tokens - lead) // GRID_TOKENS * GRID_TOKENS
        spans: list[tuple[Mode, int, int]] = [("step", 0, lead), ("chunk", lead, whole), ("step", whole, num_tokens)]
        yield from (span for span in spans if span[1] < span[2])

    def _run(self, mode: Mode, ids: NDArray[np.int64], vision: VisionRows | None = None) -> torch.Tensor:
        """The residual stream [T, C] behind the last layer; the positions count from now on.

        Raises: NumericalError when keys or values cannot be encoded; the sequence is empty then.
        """
        assert self._proposed is None, "rollback comes first"
        start, num_tokens = self.num_tokens, len(ids)
        num_rows = max(num_tokens, MIN_BATCH_ROWS) if mode == "batch" else num_tokens
        positions = text_positions(self._next_position, num_rows)
        if vision is not None:
            positions[:, :num_tokens] = vision.positions
        embedded = self._embed(np.pad(ids, (0, num_rows - num_tokens)), vision)
        where = torch.from_numpy(positions).to(self._device)
        span = make_span(mode, self._spec.attention, self._workspace, start, where, num_rows)
        span.rows.residual.copy_(embedded)
        self._cache.begin()
        try:
            for layer in self._layers:
                layer.run(span)
            residual = span.rows.residual[:num_tokens]
            if self._mtp is not None and mode != "propose":
                residual = residual.clone()  # the head works in the same rows
                self._mtp.observe(embedded[:num_tokens], self._final_norm(residual), positions[:, :num_tokens])
        except NumericalError:
            self.rewind(0)
            raise
        self._cache.commit(start + num_tokens)
        self._next_position = max(self._next_position, int(positions[:, :num_tokens].max()) + 1)
        return residual

    def _embed(self, ids: NDArray[np.int64], vision: VisionRows | None) -> torch.Tensor:
        """The residual stream [T, C] before the first layer, a new tensor."""
        embedded = take_rows(self._embedding, torch.from_numpy(ids).to(self._device))
        if vision is not None and len(vision.columns):
            embedded[torch.from_numpy(vision.columns).to(self._device)] = torch.from_numpy(vision.rows).to(self._device)
        return embedded

    def _logits(self, last: torch.Tensor, column: int = 0) -> Logits:
        out = self._workspace.logits[column : column + 1]
        self._head.multiply(self._final_norm(last), out)
        return _to_numpy(out[0])

    def _clear(self) -> None:
        """Everything that belongs to positions but keys and values."""
        self._next_position = 0
        if self._states is not None:
            self._states.clear()
        if self._mtp is not None:
            self._mtp.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Proposed:
    """The columns of an open round: their ids [M] and, for the MTP head, hidden states [M, C]."""

    ids: NDArray[np.int64]
    hidden: torch.Tensor | None


def _to_numpy(tensor: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.cpu().numpy()
    return array
