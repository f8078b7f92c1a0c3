"""The real model: logits against transformers on the same file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from engine.memory.arena import Arena
from engine.model.decoder import Decoder
from engine.registry import lookup
from engine.settings import EngineConfig, EngineSettings
from engine.startup import EnginePlan, plan_engine
from engine.weights.binding import load_weights
from support.transformers_oracle import load_reference

pytestmark = pytest.mark.weights

# As for the tiny model: two orders of summation in fp32, per unit of the logits' standard deviation.
FP32_TOLERANCE = 1e-4


def plan(folder: Path, **settings: str) -> EnginePlan:
    home = folder.parent.parent
    return plan_engine(EngineConfig(EngineSettings(**settings), home, None), lookup("smollm2-135m").spec)


def test_logits_match_transformers(smollm2_folder: Path) -> None:
    planned = plan(smollm2_folder, kv_format="fp32", context=512)
    arena = Arena(planned.memory, planned.device)
    decoder = Decoder(
        planned.spec, load_weights(planned.spec, planned.checkpoint, arena, lambda _done, _total: None),
        arena, planned.handles,
    )  # fmt: skip
    text = Path(np.__file__).read_text()
    ids = np.array(Tokenizer.from_file(str(smollm2_folder / "tokenizer.json")).encode(text).ids[:210], dtype=np.int64)
    with torch.inference_mode():
        expected = load_reference(smollm2_folder)(torch.from_numpy(ids)[None]).logits[0].numpy()
    for cuts in ([200], [64, 128, 192, 200], [37, 199, 200]):
        decoder.rewind(0)
        for start, end in zip([0, *cuts[:-1]], cuts, strict=True):
            prefilled = decoder.prefill(ids[start:end], want_logits=end == 200)
        assert prefilled is not None
        assert_same(prefilled, expected[199])
    for position in range(200, 210):
        assert_same(decoder.step(int(ids[position])), expected[position])


def assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() <= FP32_TOLERANCE * theirs.std()
    assert ours.argmax() == theirs.argmax()
