"""The engine without a model and without threads: whatever it does it does when it is told to, and KV is marks."""

from collections import deque
from collections.abc import Callable

import torch

from bench.trees.by_hand import ByHand
from bench.trees.marks import PoisonedSegments, are_equal, held, marks_of
from bench.trees.shelf import Shelf
from bench.trees.wood import SHAPE, Tokens
from core.errors import AppError
from workers.engine.arena import Arena, TailPool
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import EngineConfig
from workers.engine.keys import BlockKey
from workers.engine.piece import Piece
from workers.engine.residence import Residence
from workers.engine.room import Room
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.step import Row
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.moves import Moves
from workers.engine.tree import PrefixTree

_DTYPE = torch.int64
_TAIL_TOKENS, _SEATS, _CHUNK_TOKENS = 96, 6, 150


class Works:
    """now: what the clock shows. between: what may happen on other threads, asked for in the middle of a turn.

    marks_for: of all the tokens of a build or a request, its cache's too. draw: a next token. token_seconds: how long
    computing one takes; None: not measured so far. inbox: ends of reads and writes, told and not heard. open: candidates that
    have not ended. pieces: of all caches that were built. awaits_claims: what was found at start waits for its caches.
    """

    def __init__(
        self,
        block_count: int,
        host_block_count: int,
        shelf: Shelf | None,
        marks_for: "Callable[[Build | Sequence], torch.Tensor]",
        draw: Callable[[], int],
        between: Callable[[], None],
    ) -> None:
        config = _config(block_count)
        self.now = 0.0
        self.token_seconds: float | None = None
        self.arena = Arena(SHAPE, config)
        self.segments = PoisonedSegments(self.arena)
        self.host: HostStore | None = None
        if host_block_count:
            self.host = HostStore(SHAPE, config, host_block_count * self.arena.block_bytes)
            self.host.segments = PoisonedSegments(self.host.segments.arena)
        self.tails = TailPool(SHAPE, config)
        self.shelf = shelf
        self.reader, self.writer = ByHand(), ByHand()
        self.inbox: deque[Callable[[], None]] = deque()
        self.moves = Moves(self.inbox.append, self.reader, self.writer)
        host_segments = None if self.host is None else self.host.segments
        self.tree = PrefixTree(self.segments, BlockKey, lambda: self.now, host_segments)
        self.residence = Residence(
            self.tree,
            self.segments,
            self.host,
            shelf,
            self.moves,
            lambda: self.token_seconds,
            lambda: self.now,
        )
        room = Room(self.tree, self.segments, self.tails, self.residence, config)
        self.scheduler = Scheduler(room, self.residence, self.tails, config)
        self.open: list[Sequence] = []
        self.pieces: list[Piece] = []
        self.awaits_claims = False
        self._marks_for, self._draw, self._between = marks_for, draw, between
        if self.residence.files is not None:
            self.residence.files.find()

    def ask(self, sequence: Sequence) -> None:
        self.open += sequence.candidates
        self.scheduler.add_sequence(sequence, self.end)

    def turn(self) -> bool:
        """What the engine does between two looks at its messages. Whether it had anything to compute."""
        self.scheduler.admit(self.end)
        for pin in self.scheduler.pins:
            if any(part.is_lost for part in pin.parts):
                raise RuntimeError("KV of a cache is lost, and nobody was told")
        if any(node.is_lost for node in self.tree.nodes()):
            raise RuntimeError("KV is lost, and stands in the way of what would be computed instead")
        self._between()
        self._forget_found()
        self.residence.writes.tend(is_full=False)
        work = self.scheduler.next_rows()
        self._between()
        for item, row in work:
            self._compute(item, row)
        for item, row in work:
            self.scheduler.advance(item, row)
        for item, row in work:
            if isinstance(item, Sequence) and row.wants_logits:
                for candidate in self.scheduler.fork(item):
                    candidate.token_ids.append(self._draw())
                    if candidate.output_count == candidate.max_output_tokens:
                        self.end(candidate, Ending.MAX_TOKENS)
        self.scheduler.clear()
        return bool(work)

    def end(self, sequence: Sequence, ending: Ending, error: AppError | None = None) -> None:
        self.scheduler.release(sequence, ending)
        self.open.remove(sequence)
        sequence.on_end(ending, error)

    def deliver(self) -> bool:
        """Hear of what has ended first; False where there is nothing to be told."""
        if self.inbox:
            self.inbox.popleft()()
            return True
        return False

    def stop(self) -> None:
        """The process ends: what is told now is not heard any more, what is not begun is not done."""
        self.scheduler.stop(self.end)
        self.scheduler.clear()
        self.moves.stop()

    def _forget_found(self) -> None:
        if self.awaits_claims and not self.scheduler.has_unplaced_builds:
            self.tree.forget_made_before(self.now)
            if self.residence.files is not None:
                self.residence.files.forget_unclaimed_pieces()
            self.awaits_claims = False

    def _compute(self, item: Build | Sequence, row: Row) -> None:
        """Raise RuntimeError unless all that the row sees is the KV of its own text."""
        marks, end = self._marks_for(item), row.position + len(row.token_ids)
        seen = [held(self.arena, row.filled())]
        if row.seat is not None:
            seen.append(self.tails.slabs[0, :, row.seat, 0, : row.tail_length, 0])
        if not are_equal(torch.cat(seen, dim=1), marks[: row.position]):
            raise RuntimeError("a request reads the KV of another text")
        new, position = marks[row.position : end], 0
        for target in (row.target, row.overflow):
            if target is not None:
                count = min(target.room, len(new) - position)
                for start, stop in target.windows.of(target.length, target.length + count):
                    self.arena.slabs[0, :, 0, start:stop, 0] = new[position : position + stop - start]
                    position += stop - start
        if row.seat is not None:
            tail = slice(row.tail_length, row.tail_length + len(new) - position)
            self.tails.slabs[0, :, row.seat, 0, tail, 0] = new[position:]


def marks_behind(prefix: Tokens, owner: int, text: Tokens, own: int) -> torch.Tensor:
    """Of a text behind a cache's, which may be another's."""
    marks = marks_of((*prefix, *text), 0)
    marks[: len(prefix)] += owner
    marks[len(prefix) :] += own
    return marks


def _config(block_count: int) -> EngineConfig:
    return EngineConfig(
        device=torch.device("cpu"),
        dtype=_DTYPE,
        arena_bytes=block_count * BLOCK_TOKENS * SHAPE.kv_bytes_per_token(_DTYPE),
        prefill_chunk_tokens=_CHUNK_TOKENS,
        max_running_requests=_SEATS,
        max_waiting_requests=0,
        tail_tokens=_TAIL_TOKENS,
        prefill_stretch=None,
    )
