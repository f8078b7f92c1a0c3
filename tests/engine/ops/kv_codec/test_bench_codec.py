"""The codec bench on a tiny random model: its attention hook is the library's attention, and its measures are right."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from engine.bench import codec
from engine.bench.codec_model import AttentionProbe, ProbedModel
from engine.bench.codec_weights import WeightStudy


@pytest.fixture(scope="module")
def probed() -> ProbedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=96, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, initializer_range=0.2, attn_implementation="eager",
    )  # fmt: skip
    probe = AttentionProbe()
    AttentionInterface.register("test_bench_codec_probe", probe)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return ProbedModel(model, None, probe)


def window(seed: int) -> Tensor:
    return torch.randint(0, 97, (60,), generator=torch.Generator().manual_seed(seed))


def test_probe_attends_as_the_library_does(probed: ProbedModel) -> None:
    probed.model.set_attn_implementation("eager")
    want = probed.model(window(1).unsqueeze(0), use_cache=False).logits[0]
    probed.model.set_attn_implementation("test_bench_codec_probe")
    torch.testing.assert_close(probed.logits(window(1)), want, atol=1e-4, rtol=0)


def test_rows_are_ordered_by_their_bytes_and_exact_where_nothing_is_quantised(probed: ProbedModel) -> None:
    probed.model.set_attn_implementation("test_bench_codec_probe")
    bench = codec.CodecBench(probed, ["bf16", "int8", "rk4v4-e8", "e8-coset-dropped"], WeightStudy())
    bench.calibrate([window(2), window(3)])
    bench.run(window(4))
    rows = bench.report()
    reports = {name: row for name, row in rows.items() if isinstance(row, dict)}
    assert reports["fp32"]["kl_mean"] == 0
    for key in ("kl_mean", "nmse_keys", "nmse_values", "attention_error"):
        assert 0 < reports["bf16"][key] < reports["rk4v4-e8"][key] < reports["e8-coset-dropped"][key]
    assert reports["rk4v4-e8"]["bytes_per_element"] == 136 / 256
    assert reports["int8"]["bytes_per_element"] == 264 / 256
    assert reports["rk4v4-e8"]["nmse_gaussian"] <= 0.0077
    assert reports["rk4v4-e8"]["nmse_gaussian_64"] <= 0.0079


def test_divergence_and_likelihood_match_numpy() -> None:
    generator = torch.Generator().manual_seed(5)
    reference, logits = (torch.randn(150, 40, generator=generator) for _ in range(2))
    token_ids = torch.randint(0, 40, (150,), generator=generator)
    p, q = (np.exp(x.double().numpy()) for x in (reference, logits))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    got = codec._divergence(reference.log_softmax(-1), logits)
    np.testing.assert_allclose(got, (p * np.log(p / q)).sum(1), rtol=1e-4)
    likelihood = codec._negative_log_likelihood(logits, token_ids)
    np.testing.assert_allclose(likelihood, -np.log(q[np.arange(149), token_ids[1:].numpy()]), rtol=1e-5)


def test_centred_rows_lose_nothing_where_rounding_is_off() -> None:
    x = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(6))
    exact = codec.Coding(4.0, lambda y: y, lambda y: y, rotated=True, centred=True)
    torch.testing.assert_close(exact.apply(x, x.mean(0), exact.round_keys), x, atol=1e-5, rtol=0)


def test_weight_study_takes_wide_heads_as_they_are_and_joins_narrow_ones() -> None:
    generator = torch.Generator().manual_seed(7)
    wide, narrow = WeightStudy(), WeightStudy()
    wide.add(3, *(torch.randn(30, heads, 256, generator=generator) for heads in (4, 2)), torch.zeros(2, 256))
    for layer in (0, 1):
        narrow.add(layer, *(torch.randn(30, heads, 64, generator=generator) for heads in (6, 3)), torch.zeros(3, 64))
    for study, num_heads in ((wide, 2), (narrow, 1)):
        report = study.report()
        assert list(report) == ["S^2", "S^1", "S^0"]
        for row in report.values():
            assert isinstance(row, dict)
            assert row["num_heads"] == num_heads
            assert len(row["nmse_by_group"]) == 4
            assert 0.006 < row["nmse"] < 0.010


def test_a_missing_model_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert codec.main(["--model-folder", str(tmp_path), "--threads", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{tmp_path} holds neither a .gguf file nor config.json; run: ./soloist fetch smollm2-135m\n"
