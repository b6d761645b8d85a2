"""KV that moves within the device: from a tail or a segment to the end of another segment."""

import torch

from workers.engine.arena import Arena, TailPool
from workers.engine.segment import Segment


def append(arena: Arena, target: Segment, source: torch.Tensor) -> None:
    """Write source [layers, 2, kv heads, tokens, head size] behind what the segment holds; it has room for it."""
    count, position = source.shape[3], 0
    for start, stop in target.windows.of(target.length, target.length + count):
        size = stop - start
        arena.slabs[:, :, :, start:stop] = source[:, :, :, position : position + size]
        position += size
    if position != count:
        raise RuntimeError(f"a segment had room for {position} of {count} tokens")
    target.length += count


def append_segment(arena: Arena, target: Segment, source: Segment, begin: int, end: int) -> None:
    """Copy tokens [begin, end) of another segment."""
    for start, stop in source.windows.of(begin, end):
        append(arena, target, arena.slabs[:, :, :, start:stop])


def append_tail(arena: Arena, tails: TailPool, target: Segment, seat: int, count: int) -> None:
    """Copy the first tokens of a tail."""
    append(arena, target, tails.slabs[:, :, seat, :, :count])
