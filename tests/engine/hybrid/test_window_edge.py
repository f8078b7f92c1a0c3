"""The end of the window: requests that fill it to the last position, and the last positions against transformers.

One long prefill is kept as a checkpoint near the end; every request then computes a tail of its own. The real window of
the family takes minutes on a narrow model; a short one takes the same way in seconds.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.engine_info import MemoryReport
from contracts.errors import ContextTooLong
from contracts.generate import Accepted, Finished, Tokens
from engine.engine import Engine, Identity
from engine.model.decoder import Decoder
from engine.runtime.drafter import MtpDrafter
from engine.runtime.speculate import Speculation
from engine.session import Session
from engine.state.image import HostImage
from engine.validate import RequestLimits
from support.tiny_engine import Collector, make_request
from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

NARROW = Shape(
    hidden=32, inner=64, heads=1, kv_heads=1, head_dim=16, key_heads=1, value_heads=3, delta_dim=8, vocab=64, mtp=True
)
TOLERANCE = 1e-4  # per unit of the logits' standard deviation
MOST_DRAFTS = 5
CHUNK = 512
TAIL = 130  # of a request, behind what all have in common


class Edge:
    """A session that has computed all but the last positions of its window."""

    def __init__(self, folder: Path, window: int) -> None:
        self.window = window
        self.hybrid = Hybrid(folder, replace(NARROW, window=window))
        self.decoder = self.hybrid.decoder(chunk=CHUNK, drafts=MOST_DRAFTS)
        self.session = Session(self.decoder, window, CHUNK, num_checkpoints=4)
        self.ids = self.hybrid.ids(window, seed=1)
        self._compute(self.ids[: window - TAIL])
        self.checkpoint = self.decoder.num_tokens // 64 * 64
        assert self.session.checkpoint_positions[-1] == self.checkpoint

    def forget_tails(self) -> None:
        """Have another token behind the checkpoint, so that the next request goes back to it and no further."""
        other = (self.ids[self.checkpoint] + 1) % self.hybrid.shape.vocab
        self._compute(np.append(self.ids[: self.checkpoint], other))

    def _compute(self, ids: Ids) -> None:
        self.session.sync(ids)
        for _ in self.session.prefill(ids, len(ids)):
            pass

    def engine(self, num_drafts: int) -> Engine:
        """An engine on this session, with that many drafts a round."""
        identity = Identity("edge", "qwen3_5", "0" * 64, "fp32", f"mtp-{num_drafts}", "x", MemoryReport([], 0, None))
        limits = RequestLimits(self.window, self.hybrid.shape.vocab, (), guards_repetition=False)
        assert self.decoder.mtp is not None
        speculation = Speculation(MtpDrafter(self.decoder.mtp) if num_drafts else None, num_drafts)
        return Engine(self.session, speculation, identity, limits, lambda _error: False, lambda: None)


@pytest.fixture(
    scope="module",
    params=[4096, pytest.param(262_144, marks=[pytest.mark.release, pytest.mark.timeout(7200)])],
)
def edge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    yield Edge(tmp_path_factory.mktemp("edge") / "model", request.param)


def generate(engine: Engine, ids: Ids, max_new_tokens: int) -> tuple[list[int], Finished, int]:
    """The reply, how it ended, and how many tokens were there already."""
    sink = Collector()
    engine.submit(make_request(ids.tolist(), max_new_tokens, sampling={"temperature": 1.0, "seed": 7}), sink)
    events = list(sink)
    end = events[-1]
    assert isinstance(end, Finished), end
    tokens = [token_id for event in events if isinstance(event, Tokens) for token_id in event.ids]
    return tokens, end, next(event.cached_tokens for event in events if isinstance(event, Accepted))


def test_requests_fill_the_window_to_the_last_position_with_any_number_of_drafts(edge: Edge) -> None:
    replies: dict[tuple[int, int], list[list[int]]] = {}
    drafted = 0
    for num_drafts in (0, 3, MOST_DRAFTS):
        engine = edge.engine(num_drafts)
        for total in (edge.window - 1, edge.window):
            for num_prompt in (edge.window - 90, edge.window - 4, total - 1):
                wanted = total - num_prompt if total < edge.window else 10_000  # beyond the window it is clamped
                edge.forget_tails()
                tokens, end, cached = generate(engine, edge.ids[:num_prompt], wanted)
                assert (len(tokens), end.reason, cached) == (total - num_prompt, "length", edge.checkpoint)
                replies.setdefault((total, num_prompt), []).append(tokens)
                drafted += end.usage.drafted_tokens
        for length in (edge.window, edge.window + 1):
            with pytest.raises(ContextTooLong, match=f"{length} tokens, the context limit is {edge.window}"):
                engine.submit(make_request([1] * length, 1), Collector())
        assert engine.close(60.0)
    assert drafted > 0
    for same in replies.values():
        assert same[0] == same[1] == same[2]


def test_the_last_positions_match_transformers_from_the_same_state(edge: Edge) -> None:
    """The library goes on from our keys, values and states, so that it need not compute the whole window itself."""
    decoder, ids = edge.decoder, edge.ids
    edge.forget_tails()
    edge.session.sync(ids[:-1])
    assert decoder.num_tokens == edge.checkpoint
    expected = library_logits(edge, decoder.snapshot())
    scores = [decoder.score(ids[edge.checkpoint : -70])]  # a whole block in chunk mode, then single positions
    scores.append(np.array([decoder.step(int(token_id)).copy() for token_id in ids[-70:]]))
    assert decoder.num_tokens == edge.window
    ours = np.concatenate(scores)
    assert np.abs(ours - expected).max() <= TOLERANCE * expected.std()
    assert np.array_equal(ours.argmax(axis=1), expected.argmax(axis=1))
    edge.session.drop()


@torch.no_grad()
def library_logits(edge: Edge, image: HostImage) -> Floats:
    """Logits of the positions behind the image."""
    reference = edge.hybrid.reference
    cache = reference(torch.from_numpy(edge.ids[None, :8]), use_cache=True).cache
    assert image.recurrent is not None and image.conv is not None
    delta = 0
    for layer, kind in zip(cache.layers, edge.hybrid.spec.schedule, strict=True):
        if kind == "attention":
            keys, values = kept_rows(edge.decoder, image.position)
            layer.keys, layer.values = keys[None].clone(), values[None].clone()
        else:
            # The library keeps four raw columns, the oldest of which it never reads again.
            conv = torch.cat((torch.zeros_like(image.conv[delta][:1]), image.conv[delta])).T[None]
            replace_state(layer.conv_states, conv.clone())
            replace_state(layer.recurrent_states, image.recurrent[delta][None].clone())
            delta += 1
    rest = torch.from_numpy(edge.ids[None, image.position :])
    scores: Floats = reference(rest, cache=cache, use_cache=True).logits[0].numpy()
    return scores


def kept_rows(decoder: Decoder, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    view = decoder._cache.view(0, num_tokens)
    return view.keys, view.values


def replace_state(states: object, new: torch.Tensor) -> None:
    assert isinstance(states, dict | list)
    old = states[0]
    assert old.shape == new.shape, (old.shape, new.shape)
    states[0] = new
