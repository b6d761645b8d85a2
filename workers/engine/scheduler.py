"""Who is in the engine, and what runs next. Called on the engine thread only; no tensors but those of tails that move or end."""

from collections.abc import Iterable
from typing import Protocol

from core.errors import AppError, ArenaFull, InvalidArgument
from workers.engine.arena import TailPool
from workers.engine.blocks import BLOCK_TOKENS, blocks_for
from workers.engine.config import EngineConfig
from workers.engine.segment import Segment, Segments
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.step import Row


class EndSequence(Protocol):
    def __call__(self, sequence: Sequence, ending: Ending, error: AppError | None = None) -> None: ...


class Scheduler:
    """Ready segments by cache id, builds, waiting and running sequences."""

    def __init__(self, segments: Segments, tails: TailPool, config: EngineConfig) -> None:
        self._segments = segments
        self._tails = tails
        self._config = config
        self._ready: dict[str, Segment] = {}
        self._builds: dict[str, Build] = {}
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._builds_first = False

    @property
    def arena_tokens(self) -> int:
        return self._segments.arena.pool.block_count * BLOCK_TOKENS

    @property
    def tail_token_count(self) -> int:
        """Tokens that the tails of all running requests can have written so far."""
        return sum(s.tail_tokens(self._tails.capacity) for s in self._running)

    def add_build(self, build: Build) -> None:
        known = self._builds.get(build.cache_id)
        if build.cache_id in self._ready:
            build.end(Ending.BUILT)
        elif known is not None:
            known.is_urgent = known.is_urgent or build.is_urgent
            known.listeners.extend(build.listeners)
        else:
            error = self._refuse_build(build)
            if error is None:
                self._builds[build.cache_id] = build
            else:
                build.end(Ending.FAILED, error)

    def add_sequence(self, sequence: Sequence, end: EndSequence) -> None:
        """Bind the request to its cache's segment, or to the build under way, then queue it."""
        if sequence.cache_id is not None and sequence.cache_id in self._ready:
            self._bind(sequence, self._ready[sequence.cache_id])
        elif sequence.cache_id is not None and sequence.cache_id in self._builds:
            build = self._builds[sequence.cache_id]
            build.is_urgent = True
            build.followers.append(sequence)
            sequence.is_waiting_for_build = True
        elif sequence.cache_id is not None:
            _end_all(sequence, end, Ending.PREFIX_MISSING)
            return
        error = self._refuse_sequence(sequence)
        if error is not None:
            _end_all(sequence, end, Ending.FAILED, error)
            return
        self._waiting.append(sequence)

    def admit(self, end: EndSequence) -> None:
        """Give room to what waits, in order. A request whose build is under way lets others pass."""
        for build in self._builds.values():
            if build.segment is None:
                build.segment = self._segments.allocate(len(build.token_ids), is_pinned=True)
        for sequence in [s for s in self._waiting if not s.is_waiting_for_build]:
            if self._tails.free_count < len(sequence.candidates):
                break
            if self._has_place(sequence):
                for each in sequence.candidates:
                    each.seat = self._tails.take()
                self._waiting.remove(sequence)
                self._running.append(sequence)
            elif self._running:
                break
            else:  # nothing runs that could give room back: what does not fit now would wait, and block, for ever
                _end_all(sequence, end, Ending.FAILED, self._no_room(sequence))

    def next_rows(self) -> list[tuple[Build | Sequence, Row]]:
        """All decode rows, then prefill rows of at most one chunk together; builds and prompts go first in turn."""
        decoding = [s for s in self._running if s.is_decoding]
        work: list[tuple[Build | Sequence, Row]] = []
        for sequence in decoding:
            if sequence.tail_length == self._tails.capacity:
                self._spill(sequence)
            work.append((sequence, sequence.row(1, self._tails.capacity)))
        prompts: list[Build | Sequence] = [s for s in self._running if not s.is_decoding]
        placed = sorted(
            (b for b in self._builds.values() if b.segment is not None), key=lambda b: not b.is_urgent
        )
        builds: list[Build | Sequence] = [*placed[:1]]
        self._builds_first = not self._builds_first
        budget = self._config.prefill_chunk_tokens
        for item in [*builds, *prompts] if self._builds_first else [*prompts, *builds]:
            if budget == 0:
                break
            row = item.row(budget) if isinstance(item, Build) else item.row(budget, self._tails.capacity)
            budget -= len(row.token_ids)
            work.append((item, row))
        return sorted(work, key=lambda pair: not pair[1].is_decode)

    def advance(self, item: Build | Sequence, row: Row) -> None:
        """The row's KV is written: count it, and publish a build that is complete."""
        count = len(row.token_ids)
        if row.target is not None:
            row.target.length += count
        if isinstance(item, Sequence):
            item.computed += count
            item.tail_length += 0 if row.target is not None else count
        elif item.is_complete:
            self._finish_build(item)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """The prompt is computed: let the siblings go on from it. Gives all candidates, itself first."""
        candidates = sequence.candidates
        for sibling in sequence.siblings:
            if sequence.prompt_segment is not None:
                sibling.prompt_segment = sequence.prompt_segment
                self._segments.acquire(sequence.prompt_segment)
            tails = self._tails.slabs
            tails[:, :, sibling.seat, :, : sequence.tail_length] = tails[
                :, :, sequence.seat, :, : sequence.tail_length
            ]
            sibling.tail_length, sibling.computed = sequence.tail_length, sequence.computed
            self._running.append(sibling)
        sequence.siblings = []
        return candidates

    def cancel(self, identifier: str, end: EndSequence) -> None:
        build = self._builds.get(identifier)
        if build is not None:
            self._abandon(build, Ending.CANCELLED, None, end)
        for sequence in self._sequences():
            if sequence.request_id == identifier:
                end(sequence, Ending.CANCELLED)

    def drop(self, cache_id: str) -> None:
        segment = self._ready.pop(cache_id, None)
        if segment is not None:
            self._segments.unpin(segment)
        build = self._builds.get(cache_id)
        if build is not None and build.followers:
            build.is_dropped = True
        elif build is not None:
            self._abandon(build, Ending.CANCELLED, None, end=None)

    def fail(self, items: Iterable[Build | Sequence], error: AppError, end: EndSequence) -> None:
        """End what a broken step was computing, unless it has ended already.

        A request ends with all its candidates: some may have been let go on in this very step.
        """
        broken = list(items)
        for item in broken:
            if isinstance(item, Build) and self._builds.get(item.cache_id) is item:
                self._abandon(item, Ending.FAILED, error, end)
        request_ids = {item.request_id for item in broken if isinstance(item, Sequence)}
        for sequence in self._sequences():
            if sequence.request_id in request_ids:
                end(sequence, Ending.FAILED, error)

    def stop(self, end: EndSequence) -> None:
        for build in list(self._builds.values()):
            self._abandon(build, Ending.CANCELLED, None, end)
        for sequence in self._sequences():
            end(sequence, Ending.CANCELLED)

    def release(self, sequence: Sequence) -> None:
        """Give back all that a candidate holds: its place, seat, and holds on segments."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence.seat is not None:
            self._tails.give_back(sequence.seat, sequence.tail_tokens(self._tails.capacity))
            sequence.seat = None
        for segment in sequence.segments:
            self._segments.release(segment)
        sequence.prefix = sequence.prompt_segment = sequence.spill = None
        for build in self._builds.values():
            if sequence in build.followers:
                build.followers.remove(sequence)

    def _has_place(self, sequence: Sequence) -> bool:
        """Allocate what the candidates need of the arena, all of it or nothing. A build that waits for blocks comes first."""
        sizes = self._arena_sizes(sequence)
        if not any(sizes):
            return True
        if any(build.segment is None for build in self._builds.values()):
            return False
        segments = self._segments.allocate_all(sizes)
        if segments is None:
            return False
        sequence.prompt_segment, *spills = segments
        for each, spill in zip(sequence.candidates, spills, strict=True):
            each.spill = spill
        return True

    def _arena_sizes(self, sequence: Sequence) -> list[int]:
        """Tokens that need room beside the prefix: the prompt's, if it is long, then each candidate's spill."""
        capacity = self._tails.capacity
        spills = [each.spill_tokens(capacity) for each in sequence.candidates]
        return [sequence.long_prompt_tokens(capacity), *spills]

    def _bind(self, sequence: Sequence, prefix: Segment) -> None:
        for each in sequence.candidates:
            each.prefix = prefix
            self._segments.acquire(prefix)

    def _sequences(self) -> list[Sequence]:
        return [each for s in (*self._running, *self._waiting) for each in s.candidates]

    def _finish_build(self, build: Build) -> None:
        segment = build.placed
        segment.is_ready = True
        del self._builds[build.cache_id]
        for sequence in build.followers:
            self._bind(sequence, segment)
            sequence.is_waiting_for_build = False
        if build.is_dropped:
            self._segments.unpin(segment)
        else:
            self._ready[build.cache_id] = segment
        build.end(Ending.BUILT)

    def _abandon(self, build: Build, ending: Ending, error: AppError | None, end: EndSequence | None) -> None:
        del self._builds[build.cache_id]
        if build.segment is not None:
            self._segments.unpin(build.segment)
        if end is not None:
            for sequence in list(build.followers):
                _end_all(sequence, end, ending, error)
        build.end(ending, error)

    def _spill(self, sequence: Sequence) -> None:
        """Move a full tail to the spill segment, which has had room for it since admission."""
        spill, seat = sequence.spill, sequence.seat
        if spill is None or seat is None:
            raise RuntimeError("a tail is full and has nowhere to go")
        position = 0
        for start, stop in spill.windows.of(spill.length, spill.length + self._tails.capacity):
            size = stop - start
            tail = self._tails.slabs[:, :, seat, :, position : position + size]
            self._segments.arena.slabs[:, :, :, start:stop] = tail
            position += size
        spill.length += position
        sequence.tail_length = 0

    def _refuse_build(self, build: Build) -> AppError | None:
        """A new pin must fit the share of the arena that pins may take; a rebuild must fit the arena."""
        pool = self._segments.arena.pool
        limit = int(pool.block_count * (1.0 if build.is_rebuild else self._config.pinned_share))
        unplaced = sum(blocks_for(len(b.token_ids)) for b in self._builds.values() if b.segment is None)
        held = self._segments.shared_block_count + unplaced
        if held + blocks_for(len(build.token_ids)) > limit:
            return _arena_full("cache", len(build.token_ids), held, limit)
        return None

    def _refuse_sequence(self, sequence: Sequence) -> AppError | None:
        """What can never fit beside the pins is refused; what does not fit now waits."""
        count, seats = len(sequence.candidates), self._config.max_running_requests
        if count > seats:
            return InvalidArgument(
                f"{count} candidates are more than run at once ({seats}). Ask for fewer.",
                field="candidate_count",
            )
        needed = sum(map(blocks_for, self._arena_sizes(sequence)))
        if self._segments.pinned_block_count + needed > self._segments.arena.pool.block_count:
            return self._no_room(sequence)
        return None

    def _no_room(self, sequence: Sequence) -> AppError:
        return _arena_full(
            "request",
            sum(self._arena_sizes(sequence)),
            self._segments.shared_block_count,
            self._segments.arena.pool.block_count,
        )


def _end_all(sequence: Sequence, end: EndSequence, ending: Ending, error: AppError | None = None) -> None:
    """End a request whose prompt is not computed yet: every candidate of it."""
    for each in sequence.candidates:
        end(each, ending, error)


def _arena_full(what: str, tokens: int, held_blocks: int, limit_blocks: int) -> ArenaFull:
    held, limit = held_blocks * BLOCK_TOKENS, limit_blocks * BLOCK_TOKENS
    return ArenaFull(
        f"No room for the KV of this {what}: it needs {tokens} tokens, and caches hold {held} of {limit}. "
        "Delete caches, wait for some to expire, or raise HEADSTART_ARENA_BYTES.",
        metadata={
            "quota": "arena_tokens",
            "requested": str(tokens),
            "in_use": str(held),
            "limit": str(limit),
        },
    )
