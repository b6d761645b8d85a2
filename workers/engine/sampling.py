"""From logits to the next token. Each draw is keyed by (seed, position) and so independent of batch mates."""

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from core.sampling import Sampling


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) alone: counter-based Philox (Salmon et al., SC 2011)."""
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, 0], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random())


def sample(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """Choose the token at `position` from its logits [vocabulary], float32.

    Temperature, then top-k, then top-p, in transformers' order; the draw inverts the cumulative distribution.
    """
    if sampling.temperature < _COLDEST:
        return int(logits.argmax())
    scores = TemperatureLogitsWarper(sampling.temperature)(_NO_HISTORY, logits.unsqueeze(0))
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(_NO_HISTORY, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(_NO_HISTORY, scores)
    cumulative = torch.softmax(scores[0].double(), dim=-1).cumsum(dim=-1)
    draw = uniform(sampling.seed, position) * float(cumulative[-1])
    chosen = int(torch.searchsorted(cumulative, draw, right=True))
    return min(chosen, int(torch.isfinite(scores[0]).nonzero()[-1]))


# Below it scores would leave float32, and but for exact ties a draw is greedy anyway.
_COLDEST = 1e-5

# The warpers' signature wants the token history; these three do not read it.
_NO_HISTORY = torch.empty((1, 0), dtype=torch.long)
