"""Blocks of the arena: which are free, which are taken. Numbers only, no tensors.

A block is BLOCK_TOKENS tokens. Memory is given out as runs of adjacent blocks, one run where possible, because attention
makes one call a run.
"""

from bisect import bisect_left
from dataclasses import dataclass

BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Adjacent blocks [start, start + count)."""

    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


def blocks_for(tokens: int) -> int:
    """How many blocks hold this many tokens."""
    return -(-tokens // BLOCK_TOKENS)


def divide_runs(runs: tuple[Run, ...], count: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The first `count` blocks, and the others, in order."""
    first: list[Run] = []
    second: list[Run] = []
    for run in runs:
        part = min(run.count, count)
        count -= part
        if part:
            first.append(Run(run.start, part))
        if part < run.count:
            second.append(Run(run.start + part, run.count - part))
    return tuple(first), tuple(second)


class BlockPool:
    """The free runs of an arena, kept sorted and merged."""

    def __init__(self, block_count: int) -> None:
        self.block_count = block_count
        self._free = [Run(0, block_count)] if block_count else []
        self.free_count = block_count

    @property
    def used_count(self) -> int:
        return self.block_count - self.free_count

    @property
    def largest_free_count(self) -> int:
        """Blocks of the largest free run."""
        return max((run.count for run in self._free), default=0)

    def can_allocate(self, count: int) -> bool:
        return count <= self.free_count

    def allocate(self, count: int) -> tuple[Run, ...] | None:
        """Take `count` blocks, or None where they do not fit (nothing is taken then).

        The smallest single run that is large enough is used; without one, the largest runs are joined.
        """
        if not self.can_allocate(count):
            return None
        if count == 0:
            return ()
        fitting = [run for run in self._free if run.count >= count]
        taken = [min(fitting, key=lambda run: run.count)] if fitting else self._largest(count)
        result: list[Run] = []
        missing = count
        for run in taken:
            part = min(run.count, missing)
            index = bisect_left(self._free, run)
            self._free[index : index + 1] = (
                [Run(run.start + part, run.count - part)] if part < run.count else []
            )
            result.append(Run(run.start, part))
            missing -= part
        self.free_count -= count
        return tuple(sorted(result))

    def free(self, runs: tuple[Run, ...]) -> None:
        """Give runs back. Raises ValueError on blocks that are free already: that would be a bug of the engine."""
        for run in runs:
            self._insert(run)

    def check_integrity(self, used: list[Run]) -> None:
        """Raise RuntimeError unless `used` and the free runs tile the arena exactly."""
        position = 0
        for run in sorted([*self._free, *used]):
            if run.start != position:
                raise RuntimeError(f"blocks {position} to {run.start} are neither free nor used exactly once")
            position = run.end
        if position != self.block_count or sum(run.count for run in self._free) != self.free_count:
            raise RuntimeError(
                f"pool of {self.block_count} blocks accounts for {position}, {self.free_count} free"
            )

    def _largest(self, count: int) -> list[Run]:
        taken: list[Run] = []
        for run in sorted(self._free, key=lambda run: -run.count):
            if count <= 0:
                break
            taken.append(run)
            count -= run.count
        return taken

    def _insert(self, run: Run) -> None:
        index = bisect_left(self._free, run)
        before = self._free[index - 1] if index > 0 else None
        after = self._free[index] if index < len(self._free) else None
        overlaps = (before is not None and before.end > run.start) or (
            after is not None and run.end > after.start
        )
        if overlaps or run.start < 0 or run.end > self.block_count:
            raise ValueError(f"blocks {run.start} to {run.end} are not in use")
        self.free_count += run.count
        if after is not None and run.end == after.start:
            run = Run(run.start, run.count + after.count)
            del self._free[index]
        if before is not None and before.end == run.start:
            run = Run(before.start, before.count + run.count)
            del self._free[index - 1]
            index -= 1
        self._free.insert(index, run)
