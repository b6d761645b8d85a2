"""The memory that holds KV: one arena of shared blocks and one pool of private tails per device and dtype.

Arena layout: per layer, per K or V, per KV head, one slab [tokens, head size], so that any run of blocks is a strided
view [kv heads, tokens, head size] and attention reads it in place.
"""

import math
import mmap

import torch

from workers.engine.blocks import BLOCK_TOKENS, BlockPool, Run
from workers.engine.config import EngineConfig, ModelShape

KEYS, VALUES = 0, 1


class Arena:
    """KV blocks. Pages are touched when first written, so a large arena costs nothing until it is used (CPU).

    pin_memory: whether a GPU may copy to and from it by itself, for which all of its pages are taken at once.
    """

    def __init__(self, shape: ModelShape, config: EngineConfig, *, pin_memory: bool = False) -> None:
        self.token_bytes = shape.kv_bytes_per_token(config.dtype)
        self.block_bytes = self.token_bytes * BLOCK_TOKENS
        block_count = config.arena_bytes // self.block_bytes
        self.pool = BlockPool(block_count)
        self.slabs = torch.empty(
            (shape.layers, 2, shape.kv_heads, block_count * BLOCK_TOKENS, shape.head_size),
            dtype=config.dtype,
            device=config.device,
            pin_memory=pin_memory,
        )


class Windows:
    """Turns token ranges of a list of runs into ranges of the arena's token axis."""

    def __init__(self, runs: tuple[Run, ...]) -> None:
        self._runs = runs

    def of(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Half-open arena ranges that hold tokens [start, stop) of the segment, in order."""
        ranges: list[tuple[int, int]] = []
        position = 0
        for run in self._runs:
            size = run.count * BLOCK_TOKENS
            low, high = max(start, position), min(stop, position + size)
            if low < high:
                base = run.start * BLOCK_TOKENS - position
                ranges.append((base + low, base + high))
            position += size
        return ranges


class TailPool:
    """Seats for private tails: what a request has of its own, preallocated, one row of `capacity` tokens a seat.

    The lowest free seat is given out first, so that the seats in use stay together and one strided view covers them.
    A free seat holds zeros. Attention reads behind a row's last token too, under a mask that no NaN or infinity respects:
    what one request left there must never reach the next.
    """

    def __init__(self, shape: ModelShape, config: EngineConfig) -> None:
        self.capacity = config.tail_tokens
        self.slabs = _lazy_zeros(
            (
                shape.layers,
                2,
                config.max_running_requests,
                shape.kv_heads,
                config.tail_tokens,
                shape.head_size,
            ),
            config,
        )
        self._free = list(range(config.max_running_requests))

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """The lowest free seat. Raises IndexError where there is none: ask free_count first."""
        return self._free.pop(0)

    def give_back(self, seat: int, used_tokens: int) -> None:
        self.slabs[:, :, seat, :, :used_tokens] = 0
        self._free.append(seat)
        self._free.sort()


def _lazy_zeros(size: tuple[int, ...], config: EngineConfig) -> torch.Tensor:
    """Zeros whose pages are touched when first written; torch.zeros would touch them all at once on a CPU.

    Mapped by ourselves, without huge pages: of those each written token would take one a layer and head.
    """
    if config.device.type != "cpu":
        return torch.zeros(size, dtype=config.dtype, device=config.device)
    memory = mmap.mmap(
        -1, math.prod(size) * config.dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=config.dtype).view(size)
