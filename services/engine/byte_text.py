"""How a number of bytes is written in a refusal: exact, and in the unit that people think in. Owns the wording only."""

_MIB = 1 << 20
_GIB = 1 << 30


def describe_bytes(num_bytes: int) -> str:
    """As in 4000000 bytes (3.8 MiB); below 1 MiB the bytes alone."""
    if num_bytes < _MIB:
        return f"{num_bytes} bytes"
    size = f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.1f} MiB"
    return f"{num_bytes} bytes ({size})"
