"""Whose KV lies in host memory, beside a device's arena, and what makes room there. Called on the engine thread."""

from workers.engine.blocks import blocks_for
from workers.engine.fair_order import fair_order
from workers.engine.node import Node
from workers.engine.segment import Segment
from workers.engine.stored import Stored, Transfer
from workers.engine.tiers.host_store import HostStore
from workers.engine.tree import PrefixTree


class KeptHost:
    """is_full: there was no room the last time that it was asked for. evicted_token_count: tokens whose copies gave way to others, since
    the start."""

    def __init__(self, tree: PrefixTree, host: HostStore) -> None:
        self.is_full = False
        self.evicted_token_count = 0
        self._tree = tree
        self._host = host

    @property
    def block_count(self) -> int:
        """Blocks that fit."""
        return self._host.segments.arena.pool.block_count

    def room_for(self, part: Stored) -> Segment | None:
        """A place, instead of what was used longer ago; None where there is none."""
        segments, count = self._host.segments, blocks_for(len(part.token_ids))
        if not segments.arena.pool.can_allocate(count):
            older = [n for n in self._tree.nodes() if n.used_at < part.used_at and self._may_leave(n)]
            for node in fair_order(
                older, lambda n: n.root, lambda n: n.block_count, lambda n: (n.used_at, -n.begin)
            ):
                if segments.arena.pool.can_allocate(count):
                    break
                self._give_up(node)
        place = segments.allocate(count)
        self.is_full = place is None
        return place

    def add(self, place: Segment, transfer: Transfer, *, is_whole: bool) -> None:
        """The copy is over: what it is of may have been divided, or have ended."""
        segments, rest = self._host.segments, place
        for part in transfer.parts:
            mine = rest
            if part is not transfer.parts[-1]:
                mine, rest = segments.divide(rest, blocks_for(len(part.token_ids)))
            if is_whole and part.is_findable:
                self._set(part, mine)
            else:
                segments.free(mine)

    def discard(self, part: Stored) -> None:
        """It has ended, or is of no use."""
        if part.host is not None and not part.transfers:
            self._host.segments.free(part.host)
            self._set(part, None)
            self.is_full = False

    def _may_leave(self, node: Node) -> bool:
        """Not while it is read, and not where it is the only copy of a cache's KV below the arena."""
        return node.host is not None and not node.transfers and not (node.pins and node.file is None)

    def _give_up(self, node: Node) -> None:
        if not self._may_leave(node):  # it was forgotten meanwhile, with what stood behind it
            return
        self.evicted_token_count += len(node.token_ids)
        self.discard(node)
        if node.is_lost and node.is_findable:
            self._tree.forget(node)

    def _set(self, part: Stored, segment: Segment | None) -> None:
        with self._tree.changing(part):
            part.host = segment
