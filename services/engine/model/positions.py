"""Rotary positions of a sequence on three axes: time, height, width. Owns how images and text advance them.

Text advances all axes by one. An image's rows stay at the time it begins at and spread over height and width; the text
behind it goes on after its longer side. All counts here are of merged patches, which are a prompt's placeholders.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
"""[3, T]: time, height, width."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a prompt: offset is the index of its first placeholder; it has rows * cols of them."""

    offset: int
    rows: int
    cols: int

    @property
    def num_tokens(self) -> int:
        """Placeholders."""
        return self.rows * self.cols


def text_positions(first: int, num_tokens: int) -> Positions:
    """Text from rotary position first on."""
    return np.tile(np.arange(first, first + num_tokens, dtype=np.int64), (3, 1))


def prompt_positions(num_tokens: int, images: Sequence[PlacedImage]) -> Positions:
    """Every position of a prompt with images in it, which are in order and do not overlap."""
    parts: list[Positions] = []
    index = position = 0
    for image in images:
        assert index <= image.offset and image.offset + image.num_tokens <= num_tokens, f"{image} of {num_tokens}"
        parts.append(text_positions(position, image.offset - index))
        position += image.offset - index
        parts.append(position + np.indices((1, image.rows, image.cols)).reshape(3, -1))
        index = image.offset + image.num_tokens
        position += max(image.rows, image.cols)
    parts.append(text_positions(position, num_tokens - index))
    return np.concatenate(parts, axis=1)
