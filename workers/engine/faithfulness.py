"""Is this model's answer the same when its prefix is read from the arena? Asked once, before it serves.

The gate knows a model by its configuration. What a configuration does not tell (a score that is capped, a bias by distance)
shows here: the last logits of a short text, computed in two steps over a shared prefix, against transformers' own
attention over the whole.
"""

from dataclasses import replace

import torch

from core.errors import ModelUnsupported
from workers.engine.arena import Arena, TailPool
from workers.engine.attention import PartialAttention
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import EngineConfig
from workers.engine.model import Model
from workers.engine.segment import Segments
from workers.engine.step import Row, Step

_PREFIX_TOKENS = BLOCK_TOKENS + 1
_SUFFIX_TOKENS = 5
# Of the largest logit. Orders of summation differ; a mechanism that is missing differs by far more.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}


def check_faithful(model: Model, config: EngineConfig, attend: PartialAttention) -> None:
    """Raise ModelUnsupported where cached and plain logits differ by more than rounding explains."""
    token_ids = [1 + (i * 7919) % (model.vocab_size - 1) for i in range(_PREFIX_TOKENS + _SUFFIX_TOKENS)]
    expected = model.plain_forward(token_ids)[-1]
    actual = _cached_forward(model, config, attend, token_ids)[0]
    difference = float((actual - expected).abs().max() / expected.abs().max())
    # Written so that a NaN, which compares as false, is refused too.
    if not difference <= _TOLERANCE[config.dtype]:
        raise ModelUnsupported(
            f"This model cannot be served: with a shared prefix its logits differ by {difference:.2g} of the largest from "
            "those of transformers' own attention, so it needs something that this engine does not do.",
            field="model",
        )


def _cached_forward(
    model: Model, config: EngineConfig, attend: PartialAttention, token_ids: list[int]
) -> torch.Tensor:
    """In an arena of its own, as large as this needs."""
    block_bytes = model.shape.kv_bytes_per_token(config.dtype) * BLOCK_TOKENS
    small = replace(config, arena_bytes=2 * block_bytes, max_running_requests=1, tail_tokens=_SUFFIX_TOKENS)
    arena, tails = Arena(model.shape, small), TailPool(model.shape, small)
    prefix = Segments(arena).allocate(2)
    assert prefix is not None, "two blocks hold 65 tokens"
    first = Row(tuple(token_ids[:_PREFIX_TOKENS]), 0, reads=(), target=prefix, wants_logits=False)
    model.forward(Step((first,), arena, tails, attend, config.device))
    prefix.length = _PREFIX_TOKENS
    second = Row(tuple(token_ids[_PREFIX_TOKENS:]), _PREFIX_TOKENS, reads=(prefix,), seat=0)
    return model.forward(Step((second,), arena, tails, attend, config.device))
