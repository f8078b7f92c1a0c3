"""Every KV format in the decoder: codes in their layout, attention in code space, the way back before the gate."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder
from engine.model import decoder as decoder_module
from engine.ops.kv_codec import decode, encode, from_code_space, to_code_space
from engine.spec import KvFormat, ModelSpec
from engine.state.kv_cache import KvCache, KvView, open_caches
from engine.state.reserve import KvHandles, reserve_kv
from engine.weights.centres import KvCentres, centre_shape
from support.tiny_hybrid import Floats, Hybrid, Ids, Shape

MakeHybrid = Callable[[Shape], Hybrid]

FORMATS: tuple[KvFormat, ...] = ("fp32", "bf16", "int8", "rk4v4-e8")
WIDE = Shape(heads=4, kv_heads=2, head_dim=256, hidden=96, inner=128)
NARROW = Shape(heads=6, kv_heads=2, head_dim=64)
# The same numbers, rotated or not: what orders of summation differ by, per unit of the logits' standard deviation.
TOLERANCE = 1e-4


class PlainCache(KvCache):
    """Stores what the codes stand for in plain space, so that attention needs to know nothing of codes: the oracle."""

    def append(self, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Encode, decode and undo centring and rotation."""
        if not hasattr(self, "_plain"):
            shape = (self.num_layers, self.num_positions, *keys.shape[1:])
            self._plain = (torch.zeros(shape), torch.zeros(shape))
        for side, rows, plain in zip((self._keys, self._values), (keys, values), self._plain, strict=True):
            centre = side.centre(slot)
            code = decode(encode(self.kv_format, to_code_space(self.kv_format, rows, centre)))
            plain[slot, start : start + len(rows)] = from_code_space(self.kv_format, code, centre)

    def view(self, slot: int, num_positions: int) -> KvView:
        """Plain rows."""
        keys, values = (plain[slot, :num_positions].transpose(0, 1) for plain in self._plain)
        return KvView(keys, values)

    def to_code_space(self, q: torch.Tensor) -> torch.Tensor:
        """Nothing to do."""
        return q

    def from_code_space(self, slot: int, attended: torch.Tensor) -> None:
        """Nothing to do."""


def open_plain(arena: Arena, handles: KvHandles) -> tuple[KvCache, None]:
    cache, _ = open_caches(arena, handles)
    cache.__class__ = PlainCache
    return cache, None


def random_centres(spec: ModelSpec) -> KvCentres:
    rng = np.random.default_rng(3)
    keys, values = rng.normal(0.0, 0.5, (2, *centre_shape(spec))).astype(np.float32)
    return KvCentres(keys, values)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", [NARROW, WIDE], ids=["heads of 64", "heads of 256"])
def test_attention_in_code_space_equals_attention_over_decoded_rows(
    make_hybrid: MakeHybrid, monkeypatch: pytest.MonkeyPatch, kv_format: KvFormat, shape: Shape
) -> None:
    """One attention layer, so both decoders encode the very same keys and values."""
    hybrid = make_hybrid(shape)
    centres, ids = random_centres(hybrid.spec), hybrid.ids(150, seed=1)
    ours = hybrid.decoder(kv_format, centres=centres)
    monkeypatch.setattr(decoder_module, "open_caches", open_plain)
    plain = hybrid.decoder(kv_format, centres=centres)
    expected = plain.score(ids)
    assert np.abs(ours.score(ids) - expected).max() <= TOLERANCE * expected.std()
    assert np.abs(ours.step(5) - plain.step(5)).max() <= TOLERANCE * expected.std()


@pytest.mark.parametrize("shape", [NARROW, WIDE], ids=["heads of 64", "heads of 256"])
def test_fewer_bits_cost_more_and_any_centre_is_legal(make_hybrid: MakeHybrid, shape: Shape) -> None:
    hybrid = make_hybrid(shape)
    ids = hybrid.ids(300, seed=2)
    exact = hybrid.decoder("fp32").score(ids)

    def error(kv_format: KvFormat, centres: KvCentres | None = None) -> float:
        off = hybrid.decoder(kv_format, centres=centres).score(ids) - exact
        return float(np.sqrt((off**2).mean()) / exact.std())

    assert 0 < error("bf16") < 2 * error("int8") < error("rk4v4-e8") < 0.15
    assert error("rk4v4-e8", random_centres(hybrid.spec)) < 0.25  # a bad vector only costs


def score_in_pieces(hybrid: Hybrid, kv_format: KvFormat, ids: Ids, piece: int) -> Floats:
    decoder = hybrid.decoder(kv_format)
    return np.concatenate([decoder.score(ids[start : start + piece]) for start in range(0, len(ids), piece)])


@pytest.mark.parametrize("kv_format", FORMATS)
def test_chunks_change_no_bit_in_any_format(make_hybrid: MakeHybrid, kv_format: KvFormat) -> None:
    hybrid = make_hybrid(NARROW)
    ids = hybrid.ids(256 + 9, seed=4)
    assert np.array_equal(score_in_pieces(hybrid, kv_format, ids, 64), score_in_pieces(hybrid, kv_format, ids, 256))


@pytest.mark.parametrize("kv_format", FORMATS)
def test_regions_hold_the_codecs_layout_and_views_follow_every_write(
    make_hybrid: MakeHybrid, kv_format: KvFormat
) -> None:
    spec = make_hybrid(NARROW).spec
    builder = LayoutBuilder()
    handles = reserve_kv(builder, spec, kv_format, 128, with_mtp=False)
    arena = Arena(builder.plan(), torch.device("cpu"))
    cache, _ = open_caches(arena, handles)
    generator = torch.Generator().manual_seed(6)
    first, second = (torch.randn(2, 80, 2, 64, generator=generator) for _ in range(2))
    cache.append(0, 0, *first)
    cache.view(0, 80)
    cache.append(0, 30, second[0, 30:50], second[1, 30:50])  # a rollback, other columns, nothing behind them yet
    for index, name in enumerate(("keys", "values")):
        rows = torch.cat((first[index, :30], second[index, 30:50]))
        encoded = encode(kv_format, to_code_space(kv_format, rows))
        assert torch.equal(arena.tensor(f"kv.{name}")[0, :50], encoded.codes)
        if encoded.scales is not None:
            assert torch.equal(arena.tensor(f"kv.{name}_scales")[0, :, :, :50], encoded.scales)
        side = getattr(cache.view(0, 50), name)
        assert torch.equal(side, decode(encoded).transpose(0, 1))


def test_a_format_that_cannot_hold_the_heads_is_refused(make_hybrid: MakeHybrid) -> None:
    with pytest.raises(ValueError, match="needs head_dim in multiples of 64, not 32"):
        make_hybrid(Shape()).decoder("int8")
