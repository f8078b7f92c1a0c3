"""Fixtures of the decoder tests: a tiny model folder, its decoder per KV format, transformers on the same file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.memory.arena import Arena
from engine.model.decoder import Decoder
from engine.startup import plan_engine
from engine.weights.binding import load_weights
from support.tiny_engine import TINY, make_config, make_home
from support.transformers_oracle import load_reference

MakeDecoder = Callable[..., Decoder]


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def make_decoder(tiny_home: Path) -> MakeDecoder:
    def make(**settings: Any) -> Decoder:
        plan = plan_engine(make_config(tiny_home, **settings), TINY)
        arena = Arena(plan.memory, plan.device)
        weights = load_weights(plan.spec, plan.checkpoint, arena, lambda _done, _total: None)
        return Decoder(plan.spec, weights, arena, plan.handles)

    return make


@pytest.fixture(scope="session")
def decoders(make_decoder: MakeDecoder) -> dict[str, Decoder]:
    return {kv_format: make_decoder(kv_format=kv_format) for kv_format in ("fp32", "bf16")}


@pytest.fixture(scope="session")
def reference(tiny_home: Path) -> torch.nn.Module:
    return load_reference(tiny_home / "models" / TINY.name)
