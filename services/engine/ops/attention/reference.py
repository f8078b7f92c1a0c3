"""The attention contract in torch fp32: two batched products and a softmax per block of rows."""

from collections.abc import Iterator

import torch


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    block_rows: int,
    scores: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attend from the last T positions of the timeline (see the contract)."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, num_positions, _ = keys.shape
    group = num_heads // num_kv_heads
    if num_tokens == 1:
        rows = q.view(num_kv_heads, group, head_dim)
        weights = _weigh(rows, keys, scale, scores, masked=0)
        torch.bmm(weights, values, out=out.view(num_kv_heads, group, head_dim))
        return
    grouped_q = q.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [Hkv, G, T, D]
    grouped_out = out.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    start = num_positions - num_tokens
    for first, last in _blocks(start, num_positions, block_rows):
        block = slice(first - start, last - start)
        rows = grouped_q[:, :, block].reshape(num_kv_heads, -1, head_dim)  # [Hkv, G * t, D]
        weights = _weigh(rows, keys[:, :last], scale, scores, masked=last - first)
        attended = torch.bmm(weights, values[:, :last])  # [Hkv, G * t, D]
        grouped_out[:, :, block] = attended.view(num_kv_heads, group, last - first, head_dim)


def _weigh(rows: torch.Tensor, keys: torch.Tensor, scale: float, scores: torch.Tensor, masked: int) -> torch.Tensor:
    """softmax(scale * rows keys^T) [Hkv, rows, N]; row r of a group may see all but the last masked - 1 - r keys."""
    num_kv_heads, num_rows, _ = rows.shape
    num_positions = keys.shape[1]
    shape = (num_kv_heads, num_rows, num_positions)
    weights = scores[: num_kv_heads * num_rows * num_positions].view(shape)
    torch.baddbmm(weights, rows, keys.transpose(1, 2), beta=0.0, alpha=scale, out=weights)
    if masked > 1:
        future = torch.full((masked, masked), float("-inf"), device=rows.device).triu_(1)
        weights.view(num_kv_heads, -1, masked, num_positions)[..., -masked:].add_(future)
    return torch.softmax(weights, dim=-1, out=weights)


def _blocks(start: int, end: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """Spans that cover start .. end and end on multiples of block_rows, the last one at end."""
    while start < end:
        stop = min(end, (start // block_rows + 1) * block_rows)
        yield start, stop
        start = stop
