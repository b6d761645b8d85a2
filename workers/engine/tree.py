"""The prefix tree: what KV is there, found by tokens. One tree a namespace, all in one arena; numbers only, no tensors.

Nodes begin and end at block borders and are divided there alone, by giving each part its own blocks; nothing is copied. A
lookup goes by chained keys and compares the tokens too, so that no collision gives somebody another text's KV.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.keys import BlockKey, block_keys
from workers.engine.least_used import LeastUsed
from workers.engine.node import Counts, Node, Root
from workers.engine.segment import Segments
from workers.engine.stored import FileCopy, Stored


@dataclass(frozen=True, slots=True)
class Match:
    """node: the deepest node whose path agrees with the tokens and has all its KV, in the arena or not. filling: a node behind it
    that agrees with more, whose KV is being written: wait for it."""

    node: Node
    filling: Node | None


class PrefixTree:
    """Every change of nodes goes through here, so that the counts are right between any two calls.

    root_key: the key before the first block of a namespace. clock: seconds, for the age of automatic KV. host: segments in
    host memory, beside a device's arena. on_forgotten: told of each node that no lookup finds any more and that has copies elsewhere. most_resident_pinned: blocks that pins may keep in the arena while automatic KV
    needs room.
    """

    def __init__(
        self,
        segments: Segments,
        root_key: Callable[[bytes], BlockKey],
        clock: Callable[[], float],
        host: Segments | None = None,
    ) -> None:
        self._segments = segments
        self._host = host
        self._root_key = root_key
        self._clock = clock
        self._turn = 0
        self._tops: dict[BlockKey, Node] = {}
        self._automatic = LeastUsed(are_pinned=False)
        self._pinned = LeastUsed(are_pinned=True)
        self.counts = Counts()
        self.evicted_block_count = 0
        self.demoted_block_count = 0
        self.most_resident_pinned = segments.arena.pool.block_count
        self.on_forgotten: Callable[[Node], None] = lambda _: None
        self._alive: set[Node] = set()

    def top(self, namespace: bytes | None) -> Node:
        """Where a namespace begins; None: a beginning that nobody else finds, and that ends with its last reader."""
        if namespace is None:
            return Node((), None, Root(self._root_key(b""), is_shared=False), None, [])
        return self.top_of(self._root_key(namespace))

    def top_of(self, key: BlockKey) -> Node:
        """Where the namespace of this root key begins."""
        if key not in self._tops:
            self._tops[key] = Node((), None, Root(key), None, [])
        return self._tops[key]

    def match(self, start: Node, token_ids: tuple[int, ...]) -> Match:
        """Follow whole blocks of the tokens behind `start` as far as their KV is known, and divide where they leave a node."""
        self._turn += 1
        self._touch(start)
        if not start.root.is_shared or start.is_dead:
            return Match(start, None)
        keys = block_keys(start.last_key, token_ids)
        node, position = start, 0
        while position < len(keys):
            child = node.children.get(keys[position])
            if child is None:
                break
            count = _agreeing_blocks(child, keys, token_ids, position)
            if count == 0 or child.is_lost:
                break
            if not child.is_absent and child.length < count * BLOCK_TOKENS:
                return Match(node, child)
            if count < child.block_count:
                child = self._divide(child, count)
            child.used_at = self._turn
            node, position = child, position + count
        return Match(node, None)

    def pinned_blocks(self, start: Node, token_ids: tuple[int, ...]) -> int:
        """How many whole blocks of the tokens behind `start` are pinned by somebody already, computed or not."""
        keys = block_keys(start.last_key, token_ids)
        node, position = start, 0
        while position < len(keys) and (child := node.children.get(keys[position])) is not None:
            count = _agreeing_blocks(child, keys, token_ids, position)
            if child.pins == 0 or count == 0:
                break
            node, position = child, position + count
            if count < child.block_count:
                break
        return position

    def add(self, parent: Node, token_ids: tuple[int, ...], *, is_private: bool = False) -> Node | None:
        """A node for whole blocks whose KV comes next, with its room and one reader; None where there is no room now.

        Private: it can be read by path and is found by nobody, as behind a dead node and in nobody's tree. Else the caller
        has matched before, so that no child agrees with its first block.
        """
        parent.readers += 1
        segment = self._segments.allocate(len(token_ids) // BLOCK_TOKENS)
        parent.readers -= 1
        if segment is None:
            self.settle(parent)
            return None
        keys = block_keys(parent.last_key, token_ids)
        node = Node(
            token_ids, segment, parent.root, parent, keys, self._clock(), used_at=self._turn, readers=1
        )
        is_hidden = parent.is_dead or parent.is_private or not parent.root.is_shared
        # The last: a collision of keys, or KV of these tokens that is lost.
        node.is_private = is_private or is_hidden or keys[0] in parent.children
        if node.is_private:
            parent.readers += 1
        else:
            parent.children[keys[0]] = node
            parent.resident_children += 1
        self._begin(node)
        return node

    def add_absent(self, parent: Node, token_ids: tuple[int, ...], file: FileCopy, made_at: float) -> Node:
        """A node whose KV lies in a file. Nothing agrees with its first block so far."""
        node = Node(
            token_ids, None, parent.root, parent, block_keys(parent.last_key, token_ids), made_at, file=file
        )
        parent.children[node.keys[0]] = node
        self._begin(node)
        return node

    def divide_behind(self, node: Node, key: BlockKey) -> Node:
        """The part of a node that ends with the block of this key, which is not its last."""
        return self._divide(node, node.keys.index(key) + 1)

    def give_room(self, node: Node) -> bool:
        """A place in the arena for KV that comes from elsewhere; False where there is none now."""
        segment = self._segments.allocate(node.block_count)
        if segment is None:
            return False
        assert node.parent is not None, "the top holds no KV"
        with self.changing(node):
            node.segment = segment
        node.parent.resident_children += not node.is_private
        return True

    def take_room(self, node: Node) -> None:
        """Give up a node's place in the arena. Its KV lies elsewhere, or is lost."""
        assert node.segment is not None, "it has a place there"
        assert node.parent is not None, "the top holds no KV"
        self._segments.free(node.segment)
        with self.changing(node):
            node.segment = None
        node.parent.resident_children -= not node.is_private
        self.settle(node.parent)

    @contextmanager
    def changing(self, part: Stored) -> Iterator[None]:
        """Count a node anew after what is done inside."""
        if not isinstance(part, Node):
            yield
            return
        for counts in (self.counts, part.root.counts):
            counts.add(part, -1)
        yield
        for counts in (self.counts, part.root.counts):
            counts.add(part, 1)

    def acquire(self, node: Node) -> None:
        node.readers += 1

    def release(self, node: Node) -> None:
        """Give up one reader's hold. A node that was never finished goes with its reader."""
        node.readers -= 1
        if node.readers < 0:
            raise RuntimeError("a node was released more often than acquired")
        self.settle(node)

    def pin(self, node: Node) -> None:
        """A cache's path ends here."""
        for each in node.path():
            with self.changing(each):
                each.pins += 1

    def unpin(self, node: Node, *, forget: bool) -> None:
        """The cache has ended. forget: what no other cache pins is gone with it, and all that was built upon it."""
        path = node.path()
        for each in path:
            with self.changing(each):
                each.pins -= 1
            if each.pins < 0:
                raise RuntimeError("a node was unpinned more often than pinned")
        unpinned = [each for each in path if each.pins == 0]
        if forget and unpinned:
            self.forget(unpinned[0])
        for each in reversed(unpinned):
            self.settle(each)

    def forget(self, node: Node) -> None:
        """Take a node and all below it out of every lookup. Their blocks go back as soon as nobody reads them."""
        assert node.parent is not None, "a namespace ends with its last node"
        if not node.is_dead and not node.is_private:
            self._detach(node)
        gone = [each for each in node.subtree() if not each.is_dead]
        for each in gone:
            with self.changing(each):
                each.is_dead = True
        for each in gone:
            if each.has_copy:
                self.on_forgotten(each)
        for each in reversed(gone):
            self.settle(each)

    def forget_behind(self, node: Node, token_ids: tuple[int, ...]) -> None:
        """Forget what stands behind a node and begins with these tokens, less than a block of them, unless a cache pins it."""
        for child in list(node.children.values()):
            if child.pins == 0 and not child.is_dead and child.token_ids[: len(token_ids)] == token_ids:
                self.forget(child)

    def forget_older_than(self, seconds: float) -> None:
        """Automatic KV lives so long at most, however often it is used."""
        self.forget_made_before(self._clock() - seconds)

    def forget_made_before(self, limit: float) -> None:
        """Forget what no cache pins and was made before that moment."""
        for node in [n for n in self.nodes() if n.pins == 0 and n.made_at < limit]:
            if not node.is_dead:
                self.forget(node)

    def evict(self, block_count: int) -> None:
        """Free so many blocks of the arena, or all that can be: from the namespace that has most, the least used and the end of a
        text first. Automatic KV goes before what caches pin, unless they keep more than their share there. What
        lies on disk too stays there, and can be found.
        """
        while block_count > 0 and (node := self._next_to_go()) is not None:
            if node.block_count > block_count:
                self._divide(node, node.block_count - block_count)
            block_count -= node.block_count
            if node.has_copy:
                self.demoted_block_count += node.block_count
                self.take_room(node)
            else:
                self.evicted_block_count += node.block_count
                self.forget(node)

    def next_to_copy(self, wanted: Callable[[Node], bool]) -> Node | None:
        """KV that comes up soon for eviction and should be copied first."""
        return self._automatic.peek(wanted) or self._pinned.peek(wanted)

    def scattered_path(self, most_runs: int) -> list[Node] | None:
        """A path that lies in more runs than that and can be moved, and for which one run is free; None where there is none.

        Moving it takes nothing from anybody: no eviction for it.
        """
        largest = self._segments.arena.pool.largest_free_count
        for node in self.nodes():
            if node.segment is None or node.resident_children:
                continue
            path = node.path()
            runs = [run for each in path if each.segment is not None for run in each.segment.runs]
            count = 1 + sum(
                run.start != before.end for before, run in pairwise(runs)
            )  # neighbours are read as one
            blocks = sum(each.block_count for each in path)
            can_move = all(each.is_ready and not each.copies for each in path)
            if count > most_runs and blocks <= largest and can_move:
                return path
        return None

    def nodes(self) -> Iterator[Node]:
        """All that a lookup can find."""
        for top in self._tops.values():
            yield from top.subtree()[1:]

    @property
    def alive(self) -> frozenset[Node]:
        """All nodes, also those that are there for their holders alone."""
        return frozenset(self._alive)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every count is right and pool = free + used. Asked by tests, and when the engine is idle."""
        self._segments.check_integrity()
        if self._host is not None:
            self._host.check_integrity()
        total, by_root = Counts(), {node.root: Counts() for node in self._alive}
        for node in self._alive:
            if not self._is_in_order(node):
                raise RuntimeError(f"the node of tokens {node.begin} to {node.end} is not in order")
            total.add(node, 1)
            by_root[node.root].add(node, 1)
        if total != self.counts or any(root.counts != counts for root, counts in by_root.items()):
            raise RuntimeError(f"{total} is there, but {self.counts} was counted")

    def _is_in_order(self, node: Node) -> bool:
        parent = node.parent
        children = node.children.values()
        is_known = parent is not None and (node.is_private or parent.children.get(node.keys[0]) is node)
        is_whole = node.segment is None or node.segment in self._segments.alive
        is_whole &= node.host is None or (self._host is not None and node.host in self._host.alive)
        # What is in the arena stands upon what is there too: an end without its beginning is of no use.
        has_base = (
            node.segment is None
            or node.is_dead
            or (parent is not None and (parent.parent is None or parent.segment is not None))
        )
        return (
            is_known
            and is_whole
            and has_base
            and node.begin == (parent.end if parent else -1)
            and min(node.readers, node.pins, node.copies) >= 0
            and node.pins >= sum(child.pins for child in children)
            and node.resident_children == sum(child.segment is not None for child in children)
            and (node.file is None or node in node.file.parts)
            and len(node.keys) == node.block_count
        )

    def _next_to_go(self) -> Node | None:
        is_crowded = self.counts.resident_pinned > self.most_resident_pinned
        first, second = (self._pinned, self._automatic) if is_crowded else (self._automatic, self._pinned)
        return first.pop() or second.pop()

    def _touch(self, node: Node) -> None:
        for each in node.path():
            each.used_at = self._turn

    def _divide(self, node: Node, block_count: int) -> Node:
        """Make the first blocks of a node a node of their own, above it. The old object stays what its readers hold."""
        assert node.parent is not None, "the top is never divided"
        border = block_count * BLOCK_TOKENS
        first = second = None
        if node.segment is not None:
            first, second = self._segments.divide(node.segment, block_count)
        host_first = host_second = None
        if node.host is not None and self._host is not None:
            host_first, host_second = self._host.divide(node.host, block_count)
        upper = Node(
            node.token_ids[:border],
            first,
            node.root,
            node.parent,
            node.keys[:block_count],
            node.made_at,
            pins=node.pins,
            resident_children=int(first is not None),
            host=host_first,
            file=node.file,
            transfers=list(node.transfers),
            used_at=node.used_at,
        )
        holders = [each.parts for each in node.transfers]
        for parts in [*holders, node.file.parts] if node.file is not None else holders:
            parts.insert(parts.index(node), upper)
        with self.changing(node):
            node.parent.children[upper.keys[0]] = upper
            node.parent, node.begin = upper, upper.end
            node.segment, node.host = second, host_second
            node.token_ids, node.keys = node.token_ids[border:], node.keys[block_count:]
            upper.children[node.keys[0]] = node
        self._begin(upper)
        return upper

    def _begin(self, node: Node) -> None:
        node.root.node_count += 1
        self._alive.add(node)
        for counts in (self.counts, node.root.counts):
            counts.add(node, 1)

    def settle(self, node: Node) -> None:
        """Something that kept a node is gone: remove it if nothing does now, or let it be evicted when room is needed."""
        if node not in self._alive or node.readers or node.transfers:
            return
        is_unfinished = not (node.is_ready or node.is_absent)
        if not (node.pins or node.children) and (node.is_dead or node.is_private or is_unfinished):
            self._remove(node)
        elif node.is_evictable:
            (self._pinned if node.pins else self._automatic).push(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "the top is never removed"
        for counts in (self.counts, node.root.counts):
            counts.add(node, -1)
        self._alive.remove(node)
        node.root.node_count -= 1
        node.is_dead = True
        if node.segment is not None:
            self._segments.free(node.segment)
        if node.is_private:
            parent.readers -= 1
        elif parent.children.get(node.keys[0]) is node:
            del parent.children[node.keys[0]]
            parent.resident_children -= node.segment is not None
        node.segment = None
        self.settle(parent)

    def _detach(self, node: Node) -> None:
        """Hide a living subtree from lookups; the way up stays, for its readers."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.keys[0]]
        parent.resident_children -= node.segment is not None
        node.is_private = True
        parent.readers += 1


def _agreeing_blocks(node: Node, keys: list[BlockKey], token_ids: tuple[int, ...], position: int) -> int:
    """How many blocks of the node are those of the tokens from block `position` on, by key and by token."""
    count = 0
    for key in node.keys:
        if position + count == len(keys) or key != keys[position + count]:
            break
        count += 1
    begin = position * BLOCK_TOKENS
    while count and node.token_ids[: count * BLOCK_TOKENS] != token_ids[begin : begin + count * BLOCK_TOKENS]:
        count -= 1
    return count
