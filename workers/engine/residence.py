"""Where KV lies, and what brings it to the arena from the tiers below: host memory beside a device's arena, and the disk.

Called on the engine's thread; `Moves` does the copying on others. Nothing that goes wrong here reaches a caller: what cannot be
had is lost, and computed again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby

from workers.engine.blocks import blocks_for
from workers.engine.kept_files import KeptFiles
from workers.engine.kept_host import KeptHost
from workers.engine.kv_tier import KvTier
from workers.engine.node import Node
from workers.engine.piece import Piece
from workers.engine.segment import Segments
from workers.engine.stored import FileCopy, Stored, Transfer
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import Rejection, TierError
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.moves import Moves
from workers.engine.tree import PrefixTree
from workers.engine.write_behind import WriteBehind

log = logging.getLogger(__name__)


class Bringing(Enum):
    """READY: all of it is in the arena. COMING: it is being brought there. FULL: there is no room for it now. LOST: some of it has to be
    computed again."""

    READY = auto()
    COMING = auto()
    FULL = auto()
    LOST = auto()


@dataclass(slots=True)
class TierCounts:
    """Totals since start, in tokens. loads, recomputes: how often either was chosen. lost: because no copy could be had.
    demoted_of_pieces: the tree counts those of nodes."""

    promoted: Counter[KvTier] = field(default_factory=Counter)
    lost: int = 0
    loads: int = 0
    recomputes: int = 0
    demoted_of_pieces: int = 0


class Residence:
    """seconds_per_token: what computing takes, once it was measured."""

    def __init__(
        self,
        tree: PrefixTree,
        segments: Segments,
        host: HostStore | None,
        disk: DiskStore | None,
        moves: Moves,
        seconds_per_token: Callable[[], float | None],
        clock: Callable[[], float],
    ) -> None:
        self.counts = TierCounts()
        self._tree = tree
        self._segments = segments
        self._host = host
        self._disk = disk
        self._seconds_per_token = seconds_per_token
        self._moves = moves
        self._lost: list[Stored] = []
        self.writes = WriteBehind(tree, segments, self._moves, clock, self._settle)
        self._kept_host: KeptHost | None = None
        self.files: KeptFiles | None = None
        if host is not None:
            self._kept_host = KeptHost(tree, host)
            self.writes.use_host(host, self._kept_host)
        if disk is not None:
            self.files = KeptFiles(tree, disk, self._moves, clock, self.writes.keep)
            self.writes.use_disk(disk, self.files)
        tree.on_forgotten = self.discard

    @property
    def limit_blocks(self) -> int:
        """Blocks that fit the slowest tier below the arena that works; 0 without any."""
        if self._disk is not None and self._disk.is_available:
            return (
                int(self._disk.limit_bytes * 0.99) // self._segments.arena.block_bytes
            )  # files have headers
        return 0 if self._kept_host is None else self._kept_host.block_count

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way, and no pinned KV waits to be copied that can be."""
        return self._moves.count == 0 and not self.writes.has_work

    def find_piece(self, cache_id: str, node: Node, token_ids: tuple[int, ...]) -> Piece | None:
        """A cache's last tokens, where an earlier process has left them."""
        return None if self.files is None else self.files.find_piece(cache_id, node, token_ids)

    def bring(self, parts: Sequence[Stored], *, may_allocate: bool = True) -> Bringing:
        """Have all parts of a path in the arena, given in order."""
        absent = [part for part in parts if not part.is_ready and not part.transfers]
        if not absent:
            return Bringing.READY if all(part.is_ready for part in parts) else Bringing.COMING
        lost = [part for part in absent if part.is_lost]
        if not lost and not self.is_worth_loading(absent):
            self.count_recompute()
            lost = absent
        if lost:
            self._lost += lost
            return Bringing.LOST
        if not (may_allocate and self._give_room(parts, absent)):
            return Bringing.FULL
        self.counts.loads += 1
        # Parts that one read takes must adjoin: one that lies in host memory stands between two of its file.
        for copy, group in groupby(absent, key=lambda part: None if part.host is not None else part.file):
            if copy is not None:
                self._load_file(copy, list(group))
                continue
            for part in group:
                self._load_from_host(part)
        return Bringing.COMING

    def is_worth_loading(self, absent: Sequence[Stored]) -> bool:
        """Whether reading takes less time than computing would, as far as both have been measured."""
        seconds_per_token = self._seconds_per_token()
        if seconds_per_token is None:
            return True
        files = {part.file for part in absent if part.file is not None and part.host is None}
        file_bytes = sum(copy.file.size_bytes for copy in files)
        host_tokens = sum(len(part.token_ids) for part in absent if part.host is not None)
        disk_rate = None if self._disk is None else self._disk.read_rate.per_second
        host_rate = None if self._host is None else self._host.read_rate.per_second
        seconds = file_bytes / disk_rate if disk_rate else 0.0
        seconds += host_tokens * self._segments.arena.token_bytes / host_rate if host_rate else 0.0
        tokens = sum(len(part.token_ids) for part in absent)
        return seconds < seconds_per_token * tokens

    def count_recompute(self) -> None:
        """What could be read is computed. Told once for each choice, however often it is looked at."""
        self.counts.recomputes += 1

    def discard(self, part: Stored) -> None:
        """It has ended: nothing below the arena may hold it, and what else its file held is written anew."""
        if self.files is not None:
            self.files.discard(part)
        if self._kept_host is not None:
            self._kept_host.discard(part)

    def take_lost(self) -> list[Stored]:
        """Parts that have to be computed again, each told once."""
        lost, self._lost = self._lost, []
        lost += [] if self.files is None else self.files.take_lost()
        lost = list(dict.fromkeys(lost))
        self.counts.lost += sum(len(part.token_ids) for part in lost if part.is_lost and _is_held(part))
        return lost

    def demote_pieces(self, pieces: Sequence[Piece], count: int) -> None:
        """Free the places of so many pieces whose paths nobody reads just now."""
        for piece in pieces:
            if count and piece.is_ready and piece.has_copy and not (piece.transfers or piece.node.readers):
                self._take(piece)
                self.counts.demoted_of_pieces += len(piece.token_ids)
                count -= 1

    def bytes_below(self) -> dict[KvTier, tuple[int, int]]:
        """Of each tier below the arena: bytes that are taken, and that fit."""
        below: dict[KvTier, tuple[int, int]] = {}
        if self._host is not None:
            pool, block_bytes = self._host.segments.arena.pool, self._host.segments.arena.block_bytes
            below[KvTier.HOST] = (pool.used_count * block_bytes, pool.block_count * block_bytes)
        if self._disk is not None:
            below[KvTier.DISK] = (self._disk.used_bytes, self._disk.limit_bytes)
        return below

    def evicted_below(self) -> dict[KvTier, int]:
        """Of each tier below the arena: tokens whose copies there were dropped to make room, since the start."""
        evicted: dict[KvTier, int] = {}
        if self._kept_host is not None:
            evicted[KvTier.HOST] = self._kept_host.evicted_token_count
        if self.files is not None:
            evicted[KvTier.DISK] = self.files.evicted_token_count
        return evicted

    def rejections(self) -> dict[Rejection, int]:
        """KV files that were not used, and removed, since the start."""
        return {} if self._disk is None else self._disk.rejections()

    def slowest_tier(self, parts: Sequence[Stored]) -> KvTier:
        """Where the part lies that takes longest to be had."""
        below = [
            part for part in parts if part.has_copy and not part.is_ready
        ]  # also what is on its way from there
        if any(part.host is None for part in below):
            return KvTier.DISK
        return KvTier.HOST if below else KvTier.DEVICE

    def retry(self) -> None:
        """Now and then: what did not work may work now."""
        self.writes.retry()
        if self.files is not None:
            self.files.retry()

    def stop(self) -> None:
        """Return when nothing is read or written any more, and what must not outlive the process is gone."""
        self._moves.stop()
        if self.files is not None:
            self.files.remove_automatic()
        if self._disk is not None:
            self._disk.release()

    def _give_room(self, parts: Sequence[Stored], absent: list[Stored]) -> bool:
        """A place for each absent part, or for none. What is there of the path stays there meanwhile."""
        resident = [part for part in parts if isinstance(part, Node) and part.segment is not None]
        if resident:
            self._tree.acquire(resident[-1])
        given: list[Stored] = []
        for part in absent:
            if not self._give(part):
                break
            given.append(part)
        is_whole = len(given) == len(absent)
        if not is_whole:
            for part in reversed(given):
                self._take(part)
        if resident:
            self._tree.release(resident[-1])
        return is_whole

    def _give(self, part: Stored) -> bool:
        if isinstance(part, Node):
            return self._tree.give_room(part)
        part.segment = self._segments.allocate(blocks_for(len(part.token_ids)))
        return part.segment is not None

    def _take(self, part: Stored) -> None:
        if isinstance(part, Node):
            self._tree.take_room(part)
        elif part.segment is not None:
            self._segments.free(part.segment)
            part.segment = None

    def _load_file(self, copy: FileCopy, parts: list[Stored]) -> None:
        """Read parts that stand together in one file."""
        disk, files = self._disk, self.files
        assert disk is not None, "the file is on it"
        assert files is not None, "the file is one of them"
        ends = [part.begin + len(part.token_ids) for part in parts]
        assert [part.begin for part in parts[1:]] == ends[:-1], "they adjoin"
        transfer, windows = Transfer(parts), [window for part in parts for window in part.windows]
        first = parts[0].begin - copy.file.manifest.position
        copy.load_count += 1

        def read() -> None:
            disk.read_into(copy.file, self._segments.arena.slabs, windows, first_token=first)

        def end(outcome: "Future[None]") -> None:
            copy.load_count -= 1
            self._end_load(transfer, KvTier.DISK, outcome.exception())
            files.end_if_doomed(copy)

        self._moves.read(read, end)

    def _load_from_host(self, part: Stored) -> None:
        host, place = self._host, part.host
        assert host is not None, "it is there"
        assert place is not None, "it is there"
        transfer, windows = Transfer([part]), part.windows
        self._moves.read(
            lambda: host.read_into(place, self._segments.arena.slabs, windows),
            lambda outcome: self._end_load(transfer, KvTier.HOST, outcome.exception()),
        )

    def _end_load(self, transfer: Transfer, source: KvTier, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, TierError):
            log.error("KV could not be read", exc_info=error)
        transfer.end()
        copy = transfer.parts[0].file
        if error is not None and source is KvTier.HOST and copy is not None:
            self._load_file_instead(copy, transfer.parts)
            return
        if error is not None:
            self._lose_copies(transfer.parts)
        else:
            for part in transfer.parts:
                assert part.segment is not None, "a transfer keeps it"
                part.segment.length = len(part.token_ids)
                self.counts.promoted[source] += len(part.token_ids)
                if part.file is None and _is_held(part):
                    self.writes.keep(part)
        self._settle(transfer.parts)

    def _load_file_instead(self, copy: FileCopy, parts: list[Stored]) -> None:
        """Host memory could not give it. Its place stays: what comes behind may be there already, and would stand upon nothing."""
        assert self._kept_host is not None, "it was read from there"
        for part in parts:
            self._kept_host.discard(part)
        self._load_file(copy, parts)

    def _lose_copies(self, parts: Sequence[Stored]) -> None:
        """What they were read from is of no use, and neither is what comes behind them."""
        for part in reversed(parts):
            self._take(part)
        for part in parts:
            if self._kept_host is not None and part.host is not None:
                self._kept_host.discard(part)
            elif self.files is not None and part.file is not None:
                self.files.drop(part.file)
        for part in [part for part in parts if part.is_lost]:
            self._lost.append(part)
            if isinstance(part, Node) and part.is_findable:
                self._tree.forget(part)

    def _settle(self, parts: list[Stored]) -> None:
        """A transfer is over: what it kept may go now."""
        for part in parts:
            if not part.is_findable:
                self.discard(part)
            if isinstance(part, Node):
                self._tree.settle(part)
            elif isinstance(part, Piece) and part.is_unread and not part.transfers:
                self._take(part)


def _is_held(part: Stored) -> bool:
    """A cache that lives has it."""
    return part.pins > 0 if isinstance(part, Node) else part.is_findable
