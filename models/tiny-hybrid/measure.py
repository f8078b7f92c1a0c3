"""Figures of the committed tiny hybrid model: held-out perplexity, entropy and MTP acceptance.

Receives a loaded network and token ids; hands on plain numbers. Acceptance follows the drafter-invariant rule: a draft
counts when it equals the target's own token under the same noise. Does NOT train and does NOT write files.
"""

from dataclasses import dataclass

import torch
from corpus import BASE_VOCABULARY
from network import HybridNetwork
from torch import Tensor

WINDOW = 512
_NUM_DRAFTS = 5


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Figures on held-out text; acceptance is of the first draft, the true prefix given."""

    tokens: int
    perplexity: float
    unigram_perplexity: float
    entropy_bits: float
    acceptance_greedy: float
    acceptance_sampled: float
    top1_accuracy: float


@dataclass(frozen=True, slots=True)
class Generated:
    """Figures on text the model wrote itself; acceptance[j] is of draft j+1 when the drafts before it were accepted."""

    tokens: int
    temperature: float
    entropy_bits: float
    acceptance: tuple[float, ...]
    tokens_per_round_k3: float


@torch.no_grad()
def measure_held_out(network: HybridNetwork, ids: Tensor, counts: Tensor) -> HeldOut:
    """Shapes: ids [N, WINDOW] int64; counts [V] of every token in the training text."""
    unigram = torch.log((counts + 1.0) / (counts + 1.0).sum())
    sums = torch.zeros(6, dtype=torch.float64)
    noise = torch.Generator().manual_seed(5)
    drafted = 0
    for rows in torch.split(ids, 4):
        hidden = network.hidden(rows)
        scores = network.logits(hidden)[:, :-1].log_softmax(-1)  # [B, T-1, V]
        target = rows[:, 1:]
        draft = network.logits(network.drafts(hidden, rows, 1)[0])[:, :-1]  # row t predicts token t + 2
        main = scores[:, 1:]
        gumbel = _gumbel(main.shape, noise)
        sums[0] -= scores.gather(-1, target[..., None]).sum()
        sums[1] -= unigram[target].sum()
        sums[2] -= (scores.exp() * scores).sum()
        sums[3] += (main.argmax(-1) == draft.argmax(-1)).sum()
        sums[4] += ((main + gumbel).argmax(-1) == (draft.log_softmax(-1) + gumbel).argmax(-1)).sum()
        sums[5] += (scores.argmax(-1) == target).sum()
        drafted += draft.shape[0] * draft.shape[1]
    tokens = ids.shape[0] * (ids.shape[1] - 1)
    nll, unigram_nll, entropy = (float(x) / tokens for x in sums[:3])
    return HeldOut(
        tokens=tokens,
        perplexity=float(torch.tensor(nll).exp()),
        unigram_perplexity=float(torch.tensor(unigram_nll).exp()),
        entropy_bits=entropy / float(torch.log(torch.tensor(2.0))),
        acceptance_greedy=float(sums[3]) / drafted,
        acceptance_sampled=float(sums[4]) / drafted,
        top1_accuracy=float(sums[5]) / tokens,
    )


@torch.no_grad()
def measure_generated(network: HybridNetwork, prompts: Tensor, num_tokens: int, temperature: float) -> Generated:
    """Continue each prompt, then see which drafts a speculative run would have had accepted.

    Shapes: prompts [B, P]. Temperature 0 is greedy; otherwise target and draft share the noise of a position. Special
    tokens are masked, as by a logit bias, so that the text neither ends nor turns into a dialogue.
    """
    B, P = prompts.shape
    total = P + num_tokens
    mask = torch.zeros(network.config.vocab_size)
    mask[BASE_VOCABULARY:] = float("-inf")
    gumbel = _gumbel((B, total, network.config.vocab_size), torch.Generator().manual_seed(11))
    scale = 1 / temperature if temperature else 1.0
    bonus = gumbel if temperature else torch.zeros_like(gumbel)  # row p decides token p
    ids, cache, entropy = prompts, None, 0.0
    step = prompts
    for position in range(P, total):
        out = network.decoder(input_ids=step, use_cache=True, **({} if cache is None else {"cache": cache}))
        cache = out.cache
        scores = (out.logits[:, -1] * scale + mask).log_softmax(-1)
        entropy += float(torch.special.entr(scores.exp()).sum())
        step = (scores + bonus[:, position]).argmax(-1, keepdim=True)
        ids = torch.cat([ids, step], 1)
    states = network.drafts(network.hidden(ids), ids, _NUM_DRAFTS)
    rows = slice(P - 1, total - _NUM_DRAFTS - 1)  # every token that these rows draft was generated
    alive = torch.ones(B, rows.stop - rows.start, dtype=torch.bool)
    rates, expected = [], 1.0
    for index, state in enumerate(states):
        later = slice(rows.start + index + 2, rows.stop + index + 2)  # row t of draft index + 1 predicts t + index + 2
        draft = (network.logits(state[:, rows]) * scale + mask).log_softmax(-1) + bonus[:, later]
        accepted = alive & (draft.argmax(-1) == ids[:, later])
        rates.append(float(accepted.sum()) / max(1, int(alive.sum())))
        if index < 3:
            expected += float(accepted.float().mean())
        alive = accepted
    bits = entropy / (B * num_tokens) / float(torch.log(torch.tensor(2.0)))
    return Generated(B * num_tokens, temperature, bits, tuple(rates), expected)


def _gumbel(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(shape, generator=generator).clamp_(1e-9, 1 - 1e-7)
    return -torch.log(-torch.log(uniform))
