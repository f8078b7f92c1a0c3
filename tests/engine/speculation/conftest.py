"""Fixtures of the speculation tests: the tiny dense decoder with room for five drafts, and its unspeculated replies."""

from pathlib import Path

import pytest

from engine.memory.arena import Arena
from engine.model.decoder import Decoder
from engine.startup import plan_engine
from engine.weights.binding import load_weights
from support.tiny_engine import TINY, make_config, make_home


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    home: Path = make_home(tmp_path_factory.mktemp("home"))
    plan = plan_engine(make_config(home, speculation="ngram", drafts="5"), TINY)
    arena = Arena(plan.memory, plan.device)
    weights = load_weights(plan.spec, plan.checkpoint, arena, lambda *_: None)
    return Decoder(plan.spec, weights, arena, plan.handles)
