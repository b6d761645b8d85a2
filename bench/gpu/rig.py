"""A model and its memory, driven step by step: what an engine's thread asks of a device, without the engine around it."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bench.gpu.budget import Budget
from bench.gpu.shapes import Plan
from workers.engine.arena import Arena, TailPool
from workers.engine.attention import PartialAttention
from workers.engine.blocks import BLOCK_TOKENS, blocks_for
from workers.engine.config import EngineConfig, ModelShape
from workers.engine.model import Model
from workers.engine.segment import Segment
from workers.engine.step import Row, Step

_TAIL_TOKENS = 128


class Rig:
    """attend: may be exchanged between two calls."""

    def __init__(
        self, model: Model, plan: Plan, config: EngineConfig, attend: PartialAttention, budget: Budget
    ) -> None:
        self.model = model
        self.attend = attend
        self._plan = plan
        self._device = config.device
        self._budget = budget
        self._arena = Arena(model.shape, config)
        self._tails = TailPool(model.shape, config)

    def tokens(self, count: int, seed: int) -> tuple[int, ...]:
        generator = random.Random(seed)  # noqa: S311 - text for a benchmark
        return tuple(generator.choices(range(self.model.vocab_size), k=count))

    @contextmanager
    def room(self, token_count: int) -> Iterator[Segment]:
        """An empty segment for so many tokens, given back at the end."""
        runs = self._arena.pool.allocate(blocks_for(token_count))
        if runs is None:
            raise RuntimeError(f"the arena has no room for {token_count} tokens")
        try:
            yield Segment(runs)
        finally:
            self._arena.pool.free(runs)

    def prefill(self, token_ids: tuple[int, ...], segment: Segment) -> torch.Tensor:
        """Compute a text's KV from position 0, in chunks. Returns the logits of its last token."""
        chunk = self._plan.chunk_tokens
        logits = torch.empty(0)
        for start in range(0, len(token_ids), chunk):
            part = token_ids[start : start + chunk]
            is_last = start + len(part) == len(token_ids)
            logits = self._forward((Row(part, start, reads=(), target=segment, wants_logits=is_last),))
            segment.length += len(part)
            self.wait()
            self._budget.check()
        return logits[-1]

    def ask(self, question: tuple[int, ...], prefix: Segment) -> torch.Tensor:
        """A hit: the question's tokens in one step. Returns the logits that the first token is drawn from."""
        return self._forward((Row(question, prefix.length, reads=(prefix,), seat=0),))[-1]

    def decode(self, prefix: Segment, width: int, step_count: int) -> list[float]:
        """Seconds of each step in which so many requests draw a token behind the prefix and a question."""
        length = self._plan.question_tokens
        drawn = [seat % self.model.vocab_size for seat in range(width)]
        times = []
        for number in range(step_count):
            self._budget.check()
            began = time.perf_counter()
            place = length + number
            rows = tuple(
                Row((token,), prefix.length + place, reads=(prefix,), seat=seat, tail_length=place)
                for seat, token in enumerate(drawn)
            )
            # Read back, as a sampler does: the step is over then.
            drawn = self._forward(rows).argmax(-1).tolist()
            times.append(time.perf_counter() - began)
        return times

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forward(self, rows: tuple[Row, ...]) -> torch.Tensor:
        return self.model.forward(Step(rows, self._arena, self._tails, self.attend, self._device))


def config_for(shape: ModelShape, plan: Plan, device: torch.device, dtype: torch.dtype) -> EngineConfig:
    """Room for the longest prefix and for both texts of the comparison at once."""
    blocks = blocks_for(max(plan.prefixes)) + 2 * blocks_for(plan.parity_tokens + plan.question_tokens) + 1
    return EngineConfig(
        device=device,
        dtype=dtype,
        arena_bytes=blocks * BLOCK_TOKENS * shape.kv_bytes_per_token(dtype),
        prefill_chunk_tokens=plan.chunk_tokens,
        max_running_requests=max(plan.widths),
        max_waiting_requests=0,
        tail_tokens=_TAIL_TOKENS,
    )
