"""How far attention reads the timeline: arithmetic that a memory plan needs too. Owns the grid of rows; no torch."""

GRID_ROWS = 64


def num_columns(start: int, num_tokens: int) -> int:
    """Rows of keys and values that attention reads for a call."""
    return start + 1 if num_tokens == 1 else round_up_to_grid(start + num_tokens)


def round_up_to_grid(num_positions: int) -> int:
    """The next multiple of the grid."""
    return -(-num_positions // GRID_ROWS) * GRID_ROWS
