"""What stands for KV where no model computes any: a number for each token, made of the text up to it and of whose text it is.

Whoever reads the KV of another text, or of another project, reads other numbers.
"""

from collections.abc import Iterable

import torch

from workers.engine.arena import Arena
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.copies import append
from workers.engine.node import Node
from workers.engine.segment import Segment, Segments

POISON = -1  # what lies where nobody has KV


class PoisonedSegments(Segments):
    """What was freed is spoiled at once, so that whoever still reads it is noticed."""

    def free(self, segment: Segment) -> None:
        super().free(segment)
        for start, stop in segment.windows.of(0, segment.block_count * BLOCK_TOKENS):
            self.arena.slabs[:, :, :, start:stop] = POISON


def marks_of(token_ids: tuple[int, ...], owner: int) -> torch.Tensor:
    """[tokens], of integers."""
    marks: torch.Tensor = (torch.tensor(token_ids) + 1).cumsum(0) * 1000 + owner
    return marks


def write(arena: Arena, segment: Segment, marks: torch.Tensor) -> None:
    """Write them behind what the segment holds."""
    append(arena, segment, marks.view(1, 1, 1, -1, 1).expand(1, 2, 1, -1, 1))


def are_written(arena: Arena, path: list[Node], marks: torch.Tensor) -> bool:
    """Whether the path holds these, as keys and as values."""
    windows = [window for node in path if node.segment is not None for window in node.segment.filled()]
    return are_equal(held(arena, windows), marks)


def held(arena: Arena, windows: Iterable[tuple[int, int]]) -> torch.Tensor:
    """What the arena's windows [start, stop) hold: keys and values, [2, tokens]."""
    parts = [arena.slabs[0, :, 0, start:stop, 0] for start, stop in windows]
    return torch.cat(parts, dim=1) if parts else torch.empty((2, 0), dtype=torch.int64)


def are_equal(kv: torch.Tensor, marks: torch.Tensor) -> bool:
    """Whether keys and values, [2, tokens], are these marks."""
    return kv.shape[1] == len(marks) and bool((kv == marks).all())
