"""The reference executor: the whole forward pass, operator by operator in torch fp32, driven by ModelSpec.schedule.

Owns the order of layers and which rows a pass computes. Receives token ids and the position they start at, hands on the
logits of the last one. It keeps no ids and decides no chunk; state is in the cache it was given.

Two modes, because the library adds up one row in another order than many: a prompt's positions are computed in batches
of at least sixteen rows, a generated token alone. Within a mode the neighbours of a row do not change its sums, so a
prompt gives the same bits however it was cut into chunks and wherever a reused prefix ended (docs/notes/engine.md).
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.memory.arena import Arena
from engine.model.attention_block import AttentionBlock
from engine.model.expanded import expand_weights
from engine.model.mlp import run_mlp
from engine.model.reserve import MIN_BATCH_ROWS, DecoderHandles
from engine.model.workspace import Workspace
from engine.ops.linear import take_rows
from engine.ops.rmsnorm import rmsnorm
from engine.ops.rope import make_tables
from engine.spec import ModelSpec
from engine.state.checkpoints import StateImage
from engine.state.kv_cache import KvCache
from engine.weights.tensors import DecoderWeights

EXECUTOR_NAME = "reference"


@dataclass(frozen=True, slots=True)
class PositionImage:
    """The decoder's state image: keys and values stay in place, so a position is all there is to keep."""

    position: int
    num_bytes: int = 0

    def is_finite(self) -> bool:
        """Nothing is stored."""
        return True


def require_runnable(spec: ModelSpec) -> None:
    """Refuse what the schedule or the dims ask for and this version lacks.

    Raises: SetupError naming it.
    """
    if "delta" in spec.schedule:
        raise SetupError(f"{spec.name} has gated delta layers, which this version cannot run")
    if spec.attention.gated or spec.attention.qk_norm or spec.attention.mrope_sections is not None:
        raise SetupError(f"{spec.name} has gated or normalised attention, which this version cannot run")


class Decoder:
    """Runs token ids through the model. Positions below num_tokens are computed and stay so until rewind."""

    shares_columns: ClassVar[bool] = False  # one row after the other, as single steps, for the same bits
    can_rewind: ClassVar[bool] = True
    mtp: ClassVar[None] = None

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, arena: Arena, handles: DecoderHandles) -> None:
        """Effects: fills the expanded regions; takes a second for 135 M weights."""
        require_runnable(spec)
        self.name: Final = f"{EXECUTOR_NAME}-{arena.device.type}"
        self._spec = spec
        self._weights = weights
        self._device = arena.device
        self._matrices = expand_weights(weights, arena, handles.expanded)
        self._workspace = Workspace(arena, handles.workspace)
        self._cache = KvCache(arena, handles.cache)
        self._blocks = tuple(
            AttentionBlock(spec.attention, slot, self._cache, self._workspace) for slot in range(spec.num_layers)
        )
        self.max_columns: Final[int] = self._workspace.logits.shape[0]
        self._num_proposed = 0

    @property
    def num_tokens(self) -> int:
        """Positions whose state is held."""
        return self._cache.num_tokens

    def rewind(self, num_tokens: int) -> int:
        """Forget positions from num_tokens on, or from an earlier one if state cannot be cut there; returns which."""
        self._cache.truncate(num_tokens)
        self._num_proposed = 0
        return num_tokens

    @torch.inference_mode()
    def prefill(self, ids: NDArray[np.int64], *, want_logits: bool) -> NDArray[np.float32] | None:
        """Compute a prompt's next positions.

        Shapes:  ids [T]; returns [vocab] fp32 of the last position if wanted, valid until the next call.
        """
        num_tokens = len(ids)
        padded = np.zeros(max(num_tokens, MIN_BATCH_ROWS), dtype=np.int64)
        padded[:num_tokens] = ids
        residual = self._run_layers(torch.from_numpy(padded).to(self._device))
        self._cache.commit(self._cache.num_tokens + num_tokens)
        return self._logits(residual[num_tokens - 1 : num_tokens]) if want_logits else None

    @torch.inference_mode()
    def step(self, token_id: int) -> NDArray[np.float32]:
        """Compute the next position alone.

        Shapes:  returns [vocab] fp32, valid until the next call.
        """
        return self._step(token_id, 0)

    @torch.inference_mode()
    def step_many(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute the next positions as that many steps; rollback() follows.

        Shapes:  ids [M], M <= max_columns; returns [M, vocab] fp32, valid until the next call.
        """
        assert 1 <= len(ids) <= self.max_columns, f"{len(ids)} columns, planned are {self.max_columns}"
        for column, token_id in enumerate(ids):
            self._step(int(token_id), column)
        self._num_proposed = len(ids)
        logits: NDArray[np.float32] = self._workspace.logits[: len(ids)].cpu().numpy()
        return logits

    def rollback(self, num_kept: int) -> None:
        """Forget all but the first num_kept positions of the last step_many."""
        assert 0 <= num_kept <= self._num_proposed, f"{num_kept} of {self._num_proposed}"
        self._cache.truncate(self._cache.num_tokens - self._num_proposed + num_kept)
        self._num_proposed = 0

    def snapshot(self) -> PositionImage:
        """The position as an image."""
        return PositionImage(self._cache.num_tokens)

    def restore(self, image: StateImage) -> None:
        """Go to a position whose rows are in place."""
        self._cache.commit(image.position)

    def _step(self, token_id: int, column: int) -> NDArray[np.float32]:
        residual = self._run_layers(torch.tensor([token_id], device=self._device))
        self._cache.commit(self._cache.num_tokens + 1)
        return self._logits(residual, column)

    def _run_layers(self, ids: torch.Tensor) -> torch.Tensor:
        """The residual stream [T, C] behind the last layer; the cache holds the rows but does not count them yet."""
        spec, start = self._spec, self._cache.num_tokens
        rows = self._workspace.rows(len(ids))
        rows.residual.copy_(take_rows(self._weights.embedding, ids))
        positions = torch.arange(start, start + len(ids), device=self._device)
        tables = make_tables(positions, rotary_dims=spec.attention.rotary_dims, theta=spec.attention.rope_theta)
        for block, weights, matrices in zip(self._blocks, self._weights.layers, self._matrices.layers, strict=True):
            block.run(self._norm(rows.residual, weights.mixer_norm), rows, matrices, tables, start)
            run_mlp(self._norm(rows.residual, weights.mlp_norm), rows, matrices)
        return rows.residual

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rmsnorm(x, weight, eps=self._spec.norm_eps, offset=self._spec.norm_offset)

    def _logits(self, last: torch.Tensor, column: int = 0) -> NDArray[np.float32]:
        out = self._workspace.logits[column : column + 1]
        self._matrices.head.multiply(self._norm(last, self._weights.final_norm), out)
        logits: NDArray[np.float32] = out[0].cpu().numpy()
        return logits
