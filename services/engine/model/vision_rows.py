"""What a prompt span with images brings besides its ids: the rows that stand in for placeholders, and 3-D positions.

Owns the shapes. Where the rows come from and where images sit in a prompt is the caller's; `positions` computes the
latter's three axes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class VisionRows:
    """Embeddings of some of a span's T positions.

    Shapes:  columns [n] int64, ascending, indices into the span; rows [n, C] fp32; positions [3, T] int64 (time,
             height, width) of every position of the span, text included.
    """

    columns: NDArray[np.int64]
    rows: NDArray[np.float32]
    positions: NDArray[np.int64]

    def slice(self, first: int, last: int) -> "VisionRows":
        """What belongs to positions first .. last - 1 of the span."""
        inside = slice(*np.searchsorted(self.columns, (first, last)))
        return VisionRows(self.columns[inside] - first, self.rows[inside], self.positions[:, first:last])
