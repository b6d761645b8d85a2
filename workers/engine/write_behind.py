"""Copies KV below the arena while the engine works: what caches pin at once, other KV before it has to make room.

Called on the engine thread; one copy at a time is under way.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from workers.engine.kept_files import KeptFiles, is_pinned
from workers.engine.kept_host import KeptHost
from workers.engine.node import Node
from workers.engine.piece import Piece
from workers.engine.segment import Segments
from workers.engine.stored import Stored, Transfer
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import DiskFull, TierError
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.kv_file import KvFile
from workers.engine.tiers.manifest import Manifest
from workers.engine.tiers.moves import Moves
from workers.engine.tree import PrefixTree

log = logging.getLogger(__name__)

# With less of the arena free, what comes up for eviction is copied first, so that it need not be thrown away.
_FREE_SHARE = 0.25


class WriteBehind:
    """on_end: told of what is no longer kept in place by a copy that is over."""

    def __init__(
        self,
        tree: PrefixTree,
        segments: Segments,
        moves: Moves,
        clock: Callable[[], float],
        on_end: Callable[[list[Stored]], None],
    ) -> None:
        self._tree = tree
        self._segments = segments
        self._moves = moves
        self._clock = clock
        self._on_end = on_end
        self._host: tuple[HostStore, KeptHost] | None = None
        self._disk: tuple[DiskStore, KeptFiles] | None = None
        self._pinned: dict[Stored, None] = {}  # the ends of paths that caches pin, each once, in order
        self._is_writing = False
        self._has_disk_failed = False

    def use_host(self, host: HostStore, kept: KeptHost) -> None:
        self._host = host, kept

    def use_disk(self, disk: DiskStore, files: KeptFiles) -> None:
        self._disk = disk, files

    @property
    def has_work(self) -> bool:
        """Pinned KV lies in the arena alone, and something can be done about that."""
        return bool(self._pinned) and (
            self._can_write or (self._host is not None and not self._host[1].is_full)
        )

    def keep(self, part: Stored) -> None:
        """A cache pins its path: copy it to the slowest tier, unless it is there."""
        if self._host is not None or self._disk is not None:
            self._pinned[part] = None

    def tend(self, *, is_full: bool) -> None:
        """Start the next copy: of pinned KV first, then of what comes up for eviction, if there is little room or (is_full)
        somebody waits for it.
        """
        if self._is_writing:
            return
        while self.has_work:
            part = next(iter(self._pinned))
            if self._keep_next(part):
                return
            del self._pinned[part]
        pool = self._segments.arena.pool
        if is_full or pool.free_count < _FREE_SHARE * pool.block_count:
            self._copy_what_goes()

    def retry(self) -> None:
        """What did not work may work now. What has ended meanwhile is waited for no more."""
        self._has_disk_failed = False
        self._pinned = {part: None for part in self._pinned if part.is_findable}
        if self._host is not None:
            self._host[1].is_full = False

    @property
    def _can_write(self) -> bool:
        return self._disk is not None and self._disk[1].is_known and not self._has_disk_failed

    def _keep_next(self, pinned: Stored) -> bool:
        """Copy the next part of a path. False where all of it lies in the slowest tier that works."""
        if self._can_write:
            part = _first(pinned, _lacks_file)
            if part is not None:
                self._write_file(part)
        else:
            part = _first(pinned, lambda each: not each.has_copy)
            if part is not None:
                self._write_to_host(part)
        return part is not None

    def _copy_what_goes(self) -> None:
        uses_host = self._host is not None and not self._host[1].is_full
        files = self._disk[1] if self._disk is not None and self._can_write else None

        def is_for_disk(part: Stored) -> bool:
            return files is not None and part.file is None and files.may_keep(part)

        def is_wanted(part: Stored) -> bool:
            return (uses_host and part.host is None) or is_for_disk(part)

        leaf = self._tree.next_to_copy(is_wanted)
        part = None if leaf is None else _first(leaf, is_wanted)
        if part is None:
            return
        if uses_host and part.host is None and self._write_to_host(part):
            return
        if is_for_disk(part):
            self._write_file(part)

    def _write_file(self, part: Stored) -> None:
        assert self._disk is not None, "it is written to"
        disk, _ = self._disk
        manifest, windows, transfer = self._manifest(part, disk), part.windows, Transfer([part])
        self._is_writing = True
        self._moves.write(
            lambda: disk.write(manifest, self._segments.arena.slabs, windows),
            lambda outcome: self._end_file(transfer, outcome),
        )

    def _manifest(self, part: Stored, disk: DiskStore) -> Manifest:
        if isinstance(part, Piece):
            node, parent, owner = part.node, part.node, part.cache_id
        else:
            assert isinstance(part, Node), "KV is that of a node or of a piece"
            assert part.parent is not None, "the top holds no KV"
            node, parent, owner = part, part.parent, ""
        return Manifest.of(
            disk.format,
            root=node.root.key,
            parent=parent.last_key,
            position=part.begin,
            token_ids=part.token_ids,
            born_at=int(time.time() - (self._clock() - node.made_at)),
            owner=owner,
        )

    def _end_file(self, transfer: Transfer, outcome: "Future[KvFile]") -> None:
        assert self._disk is not None, "it was written to"
        _, files = self._disk
        self._is_writing = False
        transfer.end()
        error = outcome.exception()
        if error is None:
            files.add(outcome.result(), transfer.parts)
        elif isinstance(error, DiskFull):
            part = transfer.parts[0]
            self._has_disk_failed = not files.make_room(error, before=part) and is_pinned(part)
        else:
            if not isinstance(error, TierError):
                log.error("KV could not be written", exc_info=error)
            self._has_disk_failed = True
        self._on_end(transfer.parts)

    def _write_to_host(self, part: Stored) -> bool:
        """False where there is no room."""
        assert self._host is not None, "it is written to"
        host, kept = self._host
        place = kept.room_for(part)
        if place is None:
            return False
        windows, transfer = part.windows, Transfer([part])
        self._is_writing = True

        def end(outcome: "Future[None]") -> None:
            self._is_writing = False
            transfer.end()
            kept.add(place, transfer, is_whole=outcome.exception() is None)
            self._on_end(transfer.parts)

        self._moves.write(lambda: host.write(place, self._segments.arena.slabs, windows), end)
        return True


def _lacks_file(part: Stored) -> bool:
    return part.file is None


def _first(end: Stored, lacks: Callable[[Stored], bool]) -> Stored | None:
    """Of a path, from its beginning, what lacks a copy and can be copied now: an end without its beginning would be of no use."""
    for part in end.path():
        if not part.is_findable:
            return None
        if lacks(part):
            return part if part.is_ready and not part.transfers else None
    return None
