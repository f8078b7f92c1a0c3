"""The attention contract in torch fp32: two batched products and a softmax per block of rows."""

from collections.abc import Iterator

import torch
from torch.nn import functional

from engine.ops.attention_layout import GRID_ROWS, round_up_to_grid

_MIN_ROWS = 16  # a product of fewer rows takes other sums in the library


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    start: int,
    scores: torch.Tensor,
    block_rows: int,
) -> None:
    """Attend from positions start .. start + T - 1 (see the contract)."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    group, scale = num_heads // num_kv_heads, head_dim**-0.5
    if num_tokens == 1:
        weights = _score(q.view(num_kv_heads, group, head_dim), keys[:, : start + 1], scale, scores)
        torch.softmax(weights, dim=-1, out=weights)
        torch.bmm(weights, values[:, : start + 1], out=out.view(num_kv_heads, group, head_dim))
        return
    grouped_q = q.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [Hkv, G, T, D]
    grouped_out = out.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    # One grid block's future; a block of rows lies within one, so it needs some of these rows.
    future = torch.full((GRID_ROWS, GRID_ROWS), float("-inf"), device=q.device).triu_(1)
    for first, last in _blocks(start, start + num_tokens, block_rows):
        num_rows, num_positions = last - first, round_up_to_grid(last)
        grid_start = num_positions - GRID_ROWS
        rows = _at_least(min(_MIN_ROWS, block_rows), grouped_q[:, :, first - start : last - start])
        weights = _score(rows.reshape(num_kv_heads, -1, head_dim), keys[:, :num_positions], scale, scores)
        unmasked = weights.view(num_kv_heads, group, -1, num_positions)[:, :, :num_rows, grid_start:]
        unmasked += future[first - grid_start : last - grid_start]
        torch.softmax(weights, dim=-1, out=weights)
        attended = torch.bmm(weights, values[:, :num_positions]).view(num_kv_heads, group, -1, head_dim)
        grouped_out[:, :, first - start : last - start] = attended[:, :, :num_rows]


def _at_least(num_rows: int, rows: torch.Tensor) -> torch.Tensor:
    """rows [Hkv, G, t, D], filled up with zeros to num_rows of them."""
    missing = num_rows - rows.shape[2]
    return rows if missing <= 0 else functional.pad(rows, (0, 0, 0, missing))


def _score(rows: torch.Tensor, keys: torch.Tensor, scale: float, scores: torch.Tensor) -> torch.Tensor:
    """scale * rows keys^T [Hkv, rows, N], in the scratch."""
    shape = (rows.shape[0], rows.shape[1], keys.shape[1])
    target = scores[: shape[0] * shape[1] * shape[2]].view(shape)
    return torch.baddbmm(target, rows, keys.transpose(1, 2), beta=0.0, alpha=scale, out=target)


def _blocks(start: int, end: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """Spans that cover start .. end and end on multiples of block_rows, the last one at end."""
    while start < end:
        stop = min(end, (start // block_rows + 1) * block_rows)
        yield start, stop
        start = stop
