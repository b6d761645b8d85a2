"""How much memory the largest step takes, before the arena takes the rest."""

from dataclasses import replace

import torch

from workers.engine.arena import Arena, TailPool
from workers.engine.attention import PartialAttention
from workers.engine.blocks import BLOCK_TOKENS, blocks_for
from workers.engine.config import EngineConfig
from workers.engine.model import Model
from workers.engine.segment import Segments
from workers.engine.step import Row, Step

_FLOAT32_BYTES = 4
_COPIES_OF_LOGITS = 2  # as the model gives them, and as they are drawn from


def worst_step_bytes(model: Model, config: EngineConfig, attend: PartialAttention) -> int:
    """Beside weights, arena and tails: measured on CUDA, and worked out where memory cannot be measured."""
    if config.device.type == "cuda":
        return _measured(model, config, attend)
    rows = config.max_running_requests
    logits = _COPIES_OF_LOGITS * rows * model.vocab_size * _FLOAT32_BYTES
    return model.workspace_bytes(config.prefill_chunk_tokens + rows) + logits


def run_worst_step(model: Model, config: EngineConfig, attend: PartialAttention) -> torch.Tensor:
    """A whole chunk of prefill beside as many answers as can run, in memory of its own. Returns its logits [rows, vocabulary]."""
    blocks = blocks_for(config.prefill_chunk_tokens)
    block_bytes = model.shape.kv_bytes_per_token(config.dtype) * BLOCK_TOKENS
    small = replace(config, arena_bytes=blocks * block_bytes, tail_tokens=1)
    arena, tails = Arena(model.shape, small), TailPool(model.shape, small)
    target = Segments(arena).allocate(blocks)
    decode = [Row((0,), 0, reads=(), seat=tails.take()) for _ in range(config.max_running_requests)]
    prefill = Row(tuple([0] * config.prefill_chunk_tokens), 0, reads=(), target=target)
    return model.forward(Step((*decode, prefill), arena, tails, attend, config.device))


def _measured(model: Model, config: EngineConfig, attend: PartialAttention) -> int:
    """Its small arena and tails included, which are little beside what is measured."""
    run_worst_step(model, config, attend)  # libraries take memory for themselves at first
    before = torch.cuda.memory_allocated(config.device)
    torch.cuda.reset_peak_memory_stats(config.device)
    run_worst_step(model, config, attend)
    return torch.cuda.max_memory_allocated(config.device) - before
