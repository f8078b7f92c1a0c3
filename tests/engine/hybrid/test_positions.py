"""Images in a prompt: 3-D positions and the rows that replace placeholders, against transformers."""

from collections.abc import Callable
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

from engine.model.positions import PlacedImage, prompt_positions
from engine.model.vision_rows import VisionRows
from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

MakeHybrid = Callable[[Shape], Hybrid]

TOLERANCE = 1e-4
PROMPTS: tuple[tuple[int, tuple[PlacedImage, ...]], ...] = (
    (7, ()),
    (10, (PlacedImage(4, 2, 3),)),
    (6, (PlacedImage(0, 2, 3),)),
    (40, (PlacedImage(3, 1, 1), PlacedImage(5, 5, 2), PlacedImage(20, 2, 7))),
    (300, (PlacedImage(50, 8, 12), PlacedImage(170, 9, 4))),
)


def library_positions(num_tokens: int, images: tuple[PlacedImage, ...]) -> torch.Tensor:
    """The library's own index [3, 1, T]; its grids count patches, two by two of which are merged."""
    types = torch.zeros(1, num_tokens, dtype=torch.long)
    for image in images:
        types[0, image.offset : image.offset + image.num_tokens] = 1
    stub = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    stub.get_vision_position_ids = MethodType(Qwen3_5Model.get_vision_position_ids, stub)
    grids = torch.tensor([[1, 2 * image.rows, 2 * image.cols] for image in images]) if images else None
    positions: torch.Tensor = Qwen3_5Model.get_rope_index(stub, torch.zeros_like(types), types, grids)[0]
    return positions


@pytest.mark.parametrize(("num_tokens", "images"), PROMPTS)
def test_positions_are_the_librarys(num_tokens: int, images: tuple[PlacedImage, ...]) -> None:
    assert np.array_equal(prompt_positions(num_tokens, images), library_positions(num_tokens, images)[:, 0].numpy())


def test_an_example_by_hand() -> None:
    positions = prompt_positions(12, [PlacedImage(4, 2, 3)])
    assert positions[:, 4:11].tolist() == [[4, 4, 4, 4, 4, 4, 7], [4, 4, 4, 5, 5, 5, 7], [4, 5, 6, 4, 5, 6, 7]]


@pytest.mark.parametrize("cuts", [[300], [128, 172], [64, 64, 64, 64, 44], [70, 100, 130], [299, 1]])
def test_a_prompt_with_images_matches_transformers(make_hybrid: MakeHybrid, cuts: list[int]) -> None:
    hybrid = make_hybrid(Shape(head_dim=64, mtp=True))
    num_tokens, images = PROMPTS[-1]
    ids = np.concatenate([hybrid.ids(num_tokens, seed=1), hybrid.ids(12, seed=2)])  # the last are generated
    vision = whole_prompt(hybrid, num_tokens, images)
    expected = library_logits(hybrid, ids, vision, images)
    decoder, first, rows = hybrid.decoder(drafts=2), 0, []
    for length in cuts:
        rows.append(decoder.score(ids[first : first + length], vision.slice(first, first + length)))
        first += length
    image = decoder.snapshot()
    rows.append(np.array([decoder.step(int(token_id)).copy() for token_id in ids[num_tokens:]]))
    assert np.abs(np.concatenate(rows) - expected).max() <= TOLERANCE * expected.std()
    decoder.rewind(0)
    decoder.restore(image)  # the positions behind an image come back with it
    assert np.array_equal(decoder.step(int(ids[num_tokens])), rows[-1][0])
    decoder.step_many(ids[:3])
    decoder.rollback(0)
    assert np.array_equal(decoder.step(int(ids[num_tokens + 1])), rows[-1][1])


def whole_prompt(hybrid: Hybrid, num_tokens: int, images: tuple[PlacedImage, ...]) -> VisionRows:
    columns = np.concatenate([image.offset + np.arange(image.num_tokens) for image in images])
    rows = np.random.default_rng(5).normal(size=(len(columns), hybrid.shape.hidden)).astype(np.float32)
    return VisionRows(columns, rows, prompt_positions(num_tokens, images))


@torch.no_grad()
def library_logits(hybrid: Hybrid, ids: Ids, vision: VisionRows, images: tuple[PlacedImage, ...]) -> Floats:
    embedded = hybrid.reference.model.embed_tokens(torch.from_numpy(ids)[None]).clone()
    embedded[0, torch.from_numpy(vision.columns)] = torch.from_numpy(vision.rows)
    positions = library_positions(len(ids), images)
    scores: Floats = hybrid.reference(inputs_embeds=embedded, position_ids=positions, use_cache=False).logits[0].numpy()
    return scores
