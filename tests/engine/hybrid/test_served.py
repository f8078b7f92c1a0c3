"""The bundled hybrid model as an engine: every KV format, centres from its folder, reuse, speculation on and off."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import SetupError
from contracts.generate import Accepted, Failed, Finished, Tokens
from engine.engine import Engine
from engine.model_home import open_folder
from engine.ops.kv_codec import Encoded, encode
from engine.registry import lookup
from engine.settings import EngineConfig, EngineSettings
from engine.spec import KvFormat
from engine.startup import load_engine, plan_engine
from engine.state import kv_side
from engine.weights.centres import KvCentres, centre_shape, write_centres
from support.tiny_engine import Collector, make_request

SERVICES = Path(__file__).resolve().parents[3] / "services"
SPEC = lookup("tiny-hybrid").spec
FORMATS: tuple[KvFormat, ...] = ("fp32", "bf16", "int8", "rk4v4-e8")
PROMPT = np.random.default_rng(4).integers(0, 2000, 150).tolist()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    environ = {"PYTHONPATH": str(SERVICES), "SOLOIST_HOME": str(home)}
    command = [sys.executable, "-m", "engine.fetch", SPEC.name]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home


def start(home: Path, **settings: object) -> Engine:
    chosen = EngineSettings(model=SPEC.name, threads=1, context=1024, **settings)  # type: ignore[arg-type]
    return load_engine(plan_engine(EngineConfig(chosen, home, None), SPEC), lambda _: None, lambda: None)


def generate(engine: Engine, ids: list[int], max_new_tokens: int, **fields: object) -> tuple[list[Tokens], int]:
    sink = Collector()
    engine.submit(make_request(ids, max_new_tokens, sampling={"temperature": 1.0, "seed": 5}, **fields), sink)
    events = list(sink)
    assert isinstance(events[-1], Finished), events[-1]
    cached = next(event.cached_tokens for event in events if isinstance(event, Accepted))
    return [event for event in events if isinstance(event, Tokens)], cached


def tokens(events: list[Tokens]) -> list[int]:
    return [token_id for event in events for token_id in event.ids]


@pytest.mark.parametrize("kv_format", FORMATS)
def test_every_format_serves_and_a_hit_equals_a_miss(home: Path, kv_format: KvFormat) -> None:
    engine = start(home, kv_format=kv_format)
    assert engine.info().kv_format == kv_format and engine.info().executor == "reference-cpu"
    first, _ = generate(engine, PROMPT, 24)
    assert max(tokens(first)) < SPEC.vocab_size - SPEC.dead_token_rows
    again, cached = generate(engine, PROMPT, 24)
    assert cached == 128 and tokens(again) == tokens(first)
    assert engine.close(10.0)


@pytest.mark.parametrize("kv_format", ["bf16", "rk4v4-e8"])
def test_drafts_of_the_models_own_head_are_accepted_and_change_nothing(home: Path, kv_format: KvFormat) -> None:
    plain = start(home, kv_format=kv_format, speculation="off")
    expected, _ = generate(plain, PROMPT, 60)
    assert plain.close(10.0)
    engine = start(home, kv_format=kv_format, speculation="mtp", drafts="3")
    sink = Collector()
    engine.submit(make_request(PROMPT, 60, sampling={"temperature": 1.0, "seed": 5}), sink)
    events = list(sink)
    assert tokens([event for event in events if isinstance(event, Tokens)]) == tokens(expected)
    end = events[-1]
    assert isinstance(end, Finished) and 0 < end.usage.accepted_tokens < end.usage.drafted_tokens
    assert engine.close(10.0)


def test_centres_in_the_folder_are_part_of_what_is_stored(home: Path) -> None:
    folder = open_folder(home, SPEC.name)

    def logprob(kv_format: KvFormat) -> float:
        engine = start(home, kv_format=kv_format)
        events, _ = generate(engine, PROMPT, 1, logprobs=0)
        assert engine.close(10.0) and events[0].logprobs is not None
        return events[0].logprobs[0].logprob

    before = {kv_format: logprob(kv_format) for kv_format in ("int8", "rk4v4-e8")}
    rng = np.random.default_rng(2)
    keys, values = rng.normal(0.0, 0.3, (2, *centre_shape(SPEC))).astype(np.float32)
    write_centres(folder, SPEC, KvCentres(keys, values))
    assert logprob("int8") == before["int8"], "this format does not centre"
    assert 0 < abs(logprob("rk4v4-e8") - before["rk4v4-e8"]) < 0.5


@pytest.mark.parametrize("failing_call", [0, 7, 60])  # in the first chunk, in the prompt's tail, in the reply
def test_values_that_cannot_be_stored_fail_one_request_and_leave_nothing_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    engine = start(home, kv_format="rk4v4-e8")
    expected, _ = generate(engine, PROMPT, 24)
    calls = iter(range(1_000_000))

    def encode_once_badly(kv_format: KvFormat, y: torch.Tensor) -> Encoded:
        if next(calls) == failing_call:
            raise FloatingPointError("1 of 256 values to encode are not finite")
        return encode(kv_format, y)

    monkeypatch.setattr(kv_side, "encode", encode_once_badly)
    sink = Collector()
    engine.submit(make_request(PROMPT[::-1], 24, sampling={"temperature": 1.0, "seed": 5}), sink)
    failed = list(sink)[-1]
    assert isinstance(failed, Failed) and failed.code == "numerical_error" and "keys or values" in failed.message
    again, cached = generate(engine, PROMPT, 24)
    assert cached == 0 and tokens(again) == tokens(expected)
    assert engine.close(10.0)


def test_a_format_that_cannot_hold_the_heads_is_refused_before_memory_is_taken(home: Path) -> None:
    narrow = dataclasses.replace(SPEC, attention=dataclasses.replace(SPEC.attention, head_dim=96))
    chosen = EngineSettings(model=SPEC.name, kv_format="rk4v4-e8")
    with pytest.raises(SetupError, match="KV format rk4v4-e8 needs head_dim in"):
        plan_engine(EngineConfig(chosen, home, None), narrow)
