"""A pass over consecutive positions, cut into the pieces that are computed together. Owns the cut per mode.

Every piece of a mode has the same shape, so its bits cannot depend on how many pieces a pass has. Layers take all
pieces of a pass one layer at a time, so that a layer's matrix and decoded keys are used while they are near.

batch    one piece of all rows (models without recurrent state, the draft head)
chunk    a piece per block of the 64-token grid
step     a piece per row
propose  as step, and recurrent state stays as it was until a commit
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch

from engine.model.workspace import Rows, Workspace
from engine.ops.mrope import make_mrope_tables
from engine.ops.rope import RotaryTables, make_tables
from engine.spec import AttentionDims

GRID_TOKENS: Final = 64
Mode = Literal["batch", "chunk", "step", "propose"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows of positions start .. start + T - 1."""

    start: int
    rows: Rows
    tables: RotaryTables


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """All rows of a pass, and their pieces in order."""

    mode: Mode
    rows: Rows
    pieces: tuple[Piece, ...]


def make_span(
    mode: Mode, dims: AttentionDims, workspace: Workspace, start: int, positions: torch.Tensor, num_rows: int
) -> Span:
    """A pass of num_rows rows from position start on.

    Shapes:  positions [3, num_rows] int64, the rotary ones, on the workspace's device.
    """
    rows = workspace.rows(num_rows)
    if mode == "batch":
        return Span(mode, rows, (Piece(start, rows, _tables(dims, positions)),))
    step = GRID_TOKENS if mode == "chunk" else 1
    assert num_rows % step == 0 and (mode != "chunk" or start % GRID_TOKENS == 0), f"{num_rows} rows from {start}"
    pieces = []
    for first in range(0, num_rows, step):
        tables = _tables(dims, positions[:, first : first + step])
        pieces.append(Piece(start + first, rows.slice(first, first + step) if num_rows > 1 else rows, tables))
    return Span(mode, rows, tuple(pieces))


def _tables(dims: AttentionDims, positions: torch.Tensor) -> RotaryTables:
    if dims.mrope_sections is None:
        return make_tables(positions[0], rotary_dims=dims.rotary_dims, theta=dims.rope_theta)
    return make_mrope_tables(
        positions, rotary_dims=dims.rotary_dims, theta=dims.rope_theta, sections=dims.mrope_sections
    )
