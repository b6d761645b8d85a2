"""A KV segment: the KV of consecutive tokens in the arena. What has been written to it is never changed."""

from collections.abc import Callable
from dataclasses import dataclass, field

from workers.engine.arena import Arena, Windows
from workers.engine.blocks import BLOCK_TOKENS, Run, blocks_for, divide_runs


@dataclass(slots=True, eq=False)
class Segment:
    """length: tokens whose KV is written; it only grows, and only its owner lets it."""

    runs: tuple[Run, ...]
    length: int = 0
    windows: Windows = field(init=False)

    def __post_init__(self) -> None:
        self.windows = Windows(self.runs)

    @property
    def block_count(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def room(self) -> int:
        """Tokens that can be written behind those that are."""
        return self.block_count * BLOCK_TOKENS - self.length

    def filled(self) -> list[tuple[int, int]]:
        """Arena ranges of all tokens written so far."""
        return self.windows.of(0, self.length)


class Segments:
    """All segments of an arena: the only place that allocates, divides and frees them.

    make_room: asked to free so many blocks of what nobody needs, before an allocation is given up.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.alive: set[Segment] = set()
        self.make_room: Callable[[int], None] = lambda _: None

    def allocate(self, block_count: int) -> Segment | None:
        """A new segment of so many blocks, or None where they do not fit now."""
        pool = self.arena.pool
        if not pool.can_allocate(block_count):
            self.make_room(block_count - pool.free_count)
        runs = pool.allocate(block_count)
        if runs is None:
            return None
        segment = Segment(runs)
        self.alive.add(segment)
        return segment

    def allocate_all(self, sizes: list[int]) -> list[Segment | None] | None:
        """A segment for each number of tokens, none for 0; or None, and nothing taken, where they do not fit now."""
        segments: list[Segment | None] = []
        for tokens in sizes:
            segment = self.allocate(blocks_for(tokens)) if tokens else None
            if tokens and segment is None:
                for taken in segments:
                    if taken is not None:
                        self.free(taken)
                return None
            segments.append(segment)
        return segments

    def free(self, segment: Segment) -> None:
        """Give its blocks back. Raises ValueError for one that is free already: that would be a bug of the engine."""
        if segment not in self.alive:
            raise ValueError("a segment was freed twice")
        self.alive.remove(segment)
        self.arena.pool.free(segment.runs)

    def divide(self, segment: Segment, block_count: int) -> tuple[Segment, Segment]:
        """Make two of one at a block border, without copying; the first has so many blocks. The old one is gone."""
        if not 0 < block_count < segment.block_count:
            raise ValueError(f"a segment of {segment.block_count} blocks has no border at {block_count}")
        first, second = divide_runs(segment.runs, block_count)
        border = block_count * BLOCK_TOKENS
        parts = (
            Segment(first, min(segment.length, border)),
            Segment(second, max(segment.length - border, 0)),
        )
        self.alive.remove(segment)
        self.alive.update(parts)
        return parts

    def check_integrity(self) -> None:
        """Raise RuntimeError unless pool = free + used, block by block."""
        self.arena.pool.check_integrity([run for segment in self.alive for run in segment.runs])
