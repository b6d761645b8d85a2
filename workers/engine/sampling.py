"""From logits to the next token. Each draw is keyed by (seed, position) and so independent of who shares the step."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from core.sampling import Sampling, TokenLogprobs


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) alone: counter-based Philox (Salmon et al., SC 2011)."""
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, 0], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random())


def sample(logits: torch.Tensor, sampling: Sampling, position: int, answer: Sequence[int] = ()) -> int:
    """Choose the token at `position` from its logits [vocabulary], float32; `answer` is what was drawn before it.

    Penalties first; then keeps what transformers' temperature, top-k and top-p keep, in this order; the draw inverts the
    cumulative distribution. Raises ArithmeticError for logits that are no numbers: a model's values can leave a short format.
    """
    if sampling.is_penalised and answer:
        logits = _penalised(logits, sampling, answer)
    likeliest = int(logits.argmax())
    if not math.isfinite(logits[likeliest]):
        raise ArithmeticError("the largest logit is no finite number")
    if sampling.temperature < _COLDEST:
        return likeliest
    possible = _possible(logits, sampling.top_k)
    scores = TemperatureLogitsWarper(sampling.temperature)(_NO_HISTORY, logits[possible].unsqueeze(0))
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(_NO_HISTORY, scores)
    cumulative = torch.softmax(scores[0].double(), dim=-1).cumsum(dim=-1)
    draw = uniform(sampling.seed, position) * float(cumulative[-1])
    chosen = int(torch.searchsorted(cumulative, draw, right=True))
    return int(possible[min(chosen, int(torch.isfinite(scores[0]).nonzero()[-1]))])


def logprobs(logits: torch.Tensor, token_id: int, top_count: int) -> TokenLogprobs:
    """Read off the chosen token's log probability and the `top_count` largest from logits [vocabulary], float32."""
    scores = torch.log_softmax(logits, dim=-1)
    values, ids = torch.topk(scores, min(top_count, len(scores)))
    ranked = zip(ids.tolist(), values.tolist(), strict=True)
    possible = tuple((other, value) for other, value in ranked if math.isfinite(value))
    return TokenLogprobs(float(scores[token_id]), possible)


def _penalised(logits: torch.Tensor, sampling: Sampling, answer: Sequence[int]) -> torch.Tensor:
    """OpenAI's definition: logit − frequency · count − presence · [count > 0]."""
    ids, counts = torch.unique(torch.tensor(answer, device=logits.device), return_counts=True)
    logits = logits.clone()
    logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    return logits


def _possible(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """The tokens that top-k keeps, ties included; 0 keeps all.

    Asked before temperature is applied, which keeps their order: a whole vocabulary takes top-p milliseconds to sort, for
    each token of each request.
    """
    if not top_k:
        return torch.arange(len(logits), device=logits.device)
    least = torch.topk(logits, min(top_k, len(logits))).values[-1]
    return (logits >= least).nonzero()[:, 0]


# Below it scores would leave float32, and but for exact ties a draw is greedy anyway.
_COLDEST = 1e-5

# The warpers' signature wants the token history; these two do not read it.
_NO_HISTORY = torch.empty((1, 0), dtype=torch.long)
