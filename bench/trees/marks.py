"""What stands for KV where no model computes any: a number for each token, made of the text up to it and of whose text it is.

Whoever reads the KV of another text, or of another project, reads other numbers.
"""

import torch

from workers.engine.arena import Arena
from workers.engine.copies import append
from workers.engine.node import Node
from workers.engine.segment import Segment


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
    parts = [arena.slabs[0, :, 0, start:stop, 0] for start, stop in windows]
    if not parts:
        return len(marks) == 0
    held = torch.cat(parts, dim=1)
    return held.shape[1] == len(marks) and bool((held == marks).all())
