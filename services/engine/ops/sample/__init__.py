"""Choosing the next token from fp32 logits: penalties, filters, and Gumbel noise that is a function of place and seed.

Formula: token = argmax over kept ids of  logits[id] / temperature + G(seed, position, id)
         G = -log(-log u), u = (r + 1/2) 2^-32, r = lane id mod 4 of Philox4x32-10 with
         counter (id div 4, position low word, position high word, 0) and key (seed low word, seed high word).
Order:   1 penalties  2 bias  3 dead rows  4 temperature  5 top_k  6 top_p  7 min_p  8 noise. temperature 0 takes the
         largest logit after step 3. Every tie goes to the lowest id.
           repetition   logit > 0 ? logit / r : logit * r, for every id that occurs before the position
           frequency    logit - f * count,   presence  logit - p,   count over the output so far
           top_k        the k largest; top_p the shortest run of the largest whose probability reaches p
           min_p        ids whose probability is at least min_p times the largest
Shapes:  logits [V] fp32 on the host; -inf marks an id that must not be drawn; at least one is finite.
Numeric: logits and penalties in fp32; logits / temperature, probabilities, sums and noise in fp64.
Effects: none but where a function says so.
Source:  drafter-invariant Gumbel coupling (Daliri, Musco, Suresh 2024); Philox of Salmon et al., SC 2011.

The noise of a place does not depend on how the engine got there, so neither does the token: not on reuse, not on a
pause, not on a drafter that guessed first. u has 32 bits, so an id less likely than about 2^-32 is never drawn.
"""

from engine.ops.sample.choose import SampleParams, choose
from engine.ops.sample.logprobs import Logprobs, measure_logprobs
from engine.ops.sample.penalties import add_bias, penalize_output, penalize_repetition
from engine.ops.sample.philox import gumbel_noise, philox4x32

__all__ = [
    "Logprobs",
    "SampleParams",
    "add_bias",
    "choose",
    "gumbel_noise",
    "measure_logprobs",
    "penalize_output",
    "penalize_repetition",
    "philox4x32",
]
