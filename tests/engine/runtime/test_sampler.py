"""A request's sampler: penalties over the right ids, rollback, dead rows, log-probabilities, bad logits."""

import numpy as np
import pytest

from contracts.errors import NumericalError
from contracts.generate import Sampling
from engine.runtime.sampler import Sampler

VOCAB = 10


def flat() -> np.ndarray:
    return np.linspace(1.0, 2.0, 12).astype(np.float32)


def greedy(sampling: Sampling, ids: list[int], output_start: int) -> Sampler:
    return Sampler(sampling, ids, output_start, VOCAB, None)


def test_rows_beyond_the_vocabulary_are_never_drawn() -> None:
    assert greedy(Sampling(temperature=0.0), [0], 1).draw(flat(), 1).token_id == VOCAB - 1
    sampler = Sampler(Sampling(temperature=100.0), [0], 1, VOCAB, None)
    assert max(sampler.draw(flat(), position).token_id for position in range(300)) == VOCAB - 1


def test_presence_and_frequency_count_output_only() -> None:
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        sampler = greedy(Sampling(temperature=0.0, **penalty), [9, 8, 9], 2)
        assert sampler.draw(flat(), 3).token_id == 8, "9 is output, 8 only prompt"
        sampler.commit(8)
        assert sampler.draw(flat(), 4).token_id == 7


def test_frequency_grows_with_the_count() -> None:
    sampler = greedy(Sampling(temperature=0.0, frequency_penalty=0.04), [0], 1)
    drawn = []
    for position in range(1, 7):
        drawn.append(sampler.draw(flat(), position).token_id)
        sampler.commit(drawn[-1])
    assert drawn == [9, 9, 9, 8, 9, 8]


def test_repetition_counts_prompt_and_output() -> None:
    sampler = greedy(Sampling(temperature=0.0, repetition_penalty=2.0), [9, 8], 1)
    assert sampler.draw(flat(), 2).token_id == 7


@pytest.mark.parametrize("output_start", [2, 3, 5])
def test_a_resumed_sampler_equals_one_that_committed(output_start: int) -> None:
    sampling = Sampling(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2, seed=4)
    ids = [1, 2, 9, 9, 3]
    live = Sampler(sampling, ids[:output_start], output_start, VOCAB, None)
    for token_id in ids[output_start:]:
        live.commit(token_id)
    resumed = Sampler(sampling, ids, output_start, VOCAB, None)
    for position in range(5, 40):
        assert live.draw(flat(), position) == resumed.draw(flat(), position)


def test_rollback_undoes_commits() -> None:
    sampling = Sampling(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.5)
    touched, fresh = (Sampler(sampling, [1, 2, 3], 2, VOCAB, None) for _ in range(2))
    for token_id in (3, 7, 7, 9):
        touched.commit(token_id)
    touched.rollback([3, 7, 7, 9])
    for position in range(60):
        assert touched.draw(flat(), position) == fresh.draw(flat(), position)


def test_bias_moves_a_token_and_logprobs_ignore_it() -> None:
    sampling = Sampling(temperature=0.0, logit_bias={2: 100.0, 9: -100.0})
    draw = Sampler(sampling, [0], 1, VOCAB, 2).draw(flat(), 1)
    assert draw.token_id == 2 and draw.logprob is not None
    live = flat()[:VOCAB].astype(np.float64)
    exact = live - np.log(np.exp(live).sum())
    assert draw.logprob.logprob == pytest.approx(exact[2])
    assert [token_id for token_id, _ in draw.logprob.top] == [9, 8]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = flat()
    logits[4] = bad
    with pytest.raises(NumericalError, match="1 of 10 logits at position 5"):
        greedy(Sampling(), [0], 1).draw(logits, 5)


def test_dead_rows_may_hold_anything() -> None:
    logits = flat()
    logits[VOCAB:] = np.nan
    assert greedy(Sampling(temperature=0.0), [0], 1).draw(logits, 1).token_id == 9
