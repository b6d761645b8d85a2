"""A KV segment: the KV of consecutive tokens in the arena, shared by reference, never changed once ready."""

from dataclasses import dataclass, field

from workers.engine.arena import Arena, Windows
from workers.engine.blocks import Run, blocks_for


@dataclass(slots=True, eq=False)
class Segment:
    """length: tokens whose KV is written. is_ready: nothing more will be written, others may read.

    readers counts the requests that hold it; is_pinned says a cache object stands behind it. Its blocks go back to the
    pool when neither is left (`Segments.release`).
    """

    runs: tuple[Run, ...]
    length: int = 0
    is_ready: bool = False
    is_pinned: bool = False
    readers: int = 0
    windows: Windows = field(init=False)

    def __post_init__(self) -> None:
        self.windows = Windows(self.runs)

    @property
    def block_count(self) -> int:
        return sum(run.count for run in self.runs)

    def filled(self) -> list[tuple[int, int]]:
        """Arena ranges of all tokens written so far."""
        return self.windows.of(0, self.length)


class Segments:
    """All segments of an arena: the only place that allocates and frees them."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.alive: set[Segment] = set()

    @property
    def pinned_block_count(self) -> int:
        return sum(segment.block_count for segment in self.alive if segment.is_pinned)

    @property
    def shared_block_count(self) -> int:
        """Blocks that caches hold: pinned ones, and those of caches that have ended but are still read."""
        return sum(s.block_count for s in self.alive if s.is_pinned or s.is_ready)

    def allocate(self, tokens: int, *, is_pinned: bool) -> Segment | None:
        """A new segment with room for `tokens`, or None where it does not fit now."""
        runs = self.arena.pool.allocate(blocks_for(tokens))
        if runs is None:
            return None
        segment = Segment(runs, is_pinned=is_pinned)
        self.alive.add(segment)
        return segment

    def allocate_all(self, sizes: list[int]) -> list[Segment | None] | None:
        """A segment with one reader for each size, none for 0; or None, and nothing taken, where they do not fit now."""
        segments: list[Segment | None] = []
        for tokens in sizes:
            segment = self.allocate(tokens, is_pinned=False) if tokens else None
            if segment is not None:
                self.acquire(segment)
            elif tokens:
                for taken in segments:
                    if taken is not None:
                        self.release(taken)
                return None
            segments.append(segment)
        return segments

    def acquire(self, segment: Segment) -> None:
        segment.readers += 1

    def release(self, segment: Segment) -> None:
        """Give up one reader's hold."""
        segment.readers -= 1
        if segment.readers < 0:
            raise RuntimeError("a segment was released more often than acquired")
        self._free_if_unused(segment)

    def unpin(self, segment: Segment) -> None:
        """The cache object behind it has ended. Readers that are left keep it until they finish."""
        segment.is_pinned = False
        self._free_if_unused(segment)

    def check_integrity(self) -> None:
        self.arena.pool.check_integrity([run for segment in self.alive for run in segment.runs])

    def _free_if_unused(self, segment: Segment) -> None:
        if segment.readers == 0 and not segment.is_pinned and segment in self.alive:
            self.alive.remove(segment)
            self.arena.pool.free(segment.runs)
