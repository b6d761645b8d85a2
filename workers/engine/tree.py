"""The prefix tree: what KV is there, found by tokens. One tree a namespace, all in one arena; numbers only, no tensors.

Nodes begin and end at block borders and are divided there alone, by giving each part its own blocks; nothing is copied. A
lookup goes by chained keys and compares the tokens too, so that no collision gives somebody another text's KV.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.keys import BlockKey, block_keys
from workers.engine.least_used import LeastUsed
from workers.engine.node import Node, Root
from workers.engine.segment import Segments


@dataclass(frozen=True, slots=True)
class Match:
    """node: the deepest ready node whose path agrees with the tokens. filling: a node behind it that agrees with more, whose
    KV is not written so far: wait for it."""

    node: Node
    filling: Node | None


class PrefixTree:
    """Every change of nodes goes through here, so that the counts are right between any two calls.

    root_key: the key before the first block of a namespace. clock: seconds, for the age of automatic KV."""

    def __init__(
        self, segments: Segments, root_key: Callable[[bytes], BlockKey], clock: Callable[[], float]
    ) -> None:
        self._segments = segments
        self._root_key = root_key
        self._clock = clock
        self._turn = 0
        self._tops: dict[BlockKey, Node] = {}
        self._least_used = LeastUsed()
        self.pinned_block_count = 0
        self.dead_block_count = 0  # of what has ended and is still read
        self.evicted_block_count = 0
        self._alive: set[Node] = set()
        segments.make_room = self.evict

    def top(self, namespace: bytes | None) -> Node:
        """Where a namespace begins; None: a beginning that nobody else finds, and that ends with its last reader."""
        if namespace is None:
            return Node(Root(self._root_key(b""), is_shared=False), None, (), [], None)
        key = self._root_key(namespace)
        if key not in self._tops:
            self._tops[key] = Node(Root(key), None, (), [], None)
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
            if count == 0:
                break
            if child.length < count * BLOCK_TOKENS:
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
            self._settle(parent)
            return None
        keys = block_keys(parent.last_key, token_ids)
        node = Node(parent.root, parent, token_ids, keys, segment, self._turn, self._clock(), readers=1)
        is_hidden = parent.is_dead or parent.is_private or not parent.root.is_shared
        node.is_private = (
            is_private or is_hidden or keys[0] in parent.children
        )  # the last: a collision of keys
        if node.is_private:
            parent.readers += 1
        else:
            parent.children[keys[0]] = node
        node.root.block_count += node.block_count
        node.root.node_count += 1
        self._alive.add(node)
        return node

    def acquire(self, node: Node) -> None:
        node.readers += 1

    def release(self, node: Node) -> None:
        """Give up one reader's hold. A node that was never finished goes with its reader."""
        node.readers -= 1
        if node.readers < 0:
            raise RuntimeError("a node was released more often than acquired")
        self._settle(node)

    def pin(self, node: Node) -> None:
        """A cache's path ends here."""
        for each in node.path():
            if each.pins == 0:
                self._count_pinned(each, each.block_count)
            each.pins += 1

    def unpin(self, node: Node, *, forget: bool) -> None:
        """The cache has ended. forget: what no other cache pins is gone with it, and all that was built upon it."""
        path = node.path()
        for each in path:
            each.pins -= 1
            if each.pins < 0:
                raise RuntimeError("a node was unpinned more often than pinned")
            if each.pins == 0:
                self._count_pinned(each, -each.block_count)
        unpinned = next((each for each in path if each.pins == 0), None)
        if unpinned is None:
            return
        if forget:
            self.forget(unpinned)
        self._settle(node)  # private behind what was forgotten, it is nobody's child, and may still be here

    def forget(self, node: Node) -> None:
        """Take a node and all below it out of every lookup. Their blocks go back as soon as nobody reads them."""
        assert node.parent is not None, "a namespace ends with its last node"
        if not node.is_dead and not node.is_private:
            self._detach(node)
        gone = [each for each in node.subtree() if not each.is_dead]
        for each in gone:
            each.is_dead = True
            self.dead_block_count += each.block_count
        for each in reversed(gone):
            self._settle(each)

    def forget_behind(self, node: Node, token_ids: tuple[int, ...]) -> None:
        """Forget what stands behind a node and begins with these tokens, less than a block of them, unless a cache pins it."""
        for child in list(node.children.values()):
            if child.pins == 0 and not child.is_dead and child.token_ids[: len(token_ids)] == token_ids:
                self.forget(child)

    def forget_older_than(self, seconds: float) -> None:
        """Automatic KV lives so long at most, however often it is used."""
        limit = self._clock() - seconds
        for node in [n for n in self.nodes() if n.pins == 0 and n.made_at < limit]:
            if not node.is_dead:
                self.forget(node)

    def evict(self, block_count: int) -> None:
        """Free so many blocks of automatic KV, or all there is: from the namespace that has most of it, the least used and
        the end of a text first."""
        while block_count > 0 and (node := self._least_used.pop()) is not None:
            if node.block_count > block_count:
                self._divide(node, node.block_count - block_count)
            block_count -= node.block_count
            self.evicted_block_count += node.block_count
            self._remove(node)

    def scattered_path(self, most_runs: int) -> list[Node] | None:
        """A path that lies in more runs than that and can be moved, and for which one run is free; None where there is none.

        Moving it takes nothing from anybody: no eviction for it.
        """
        largest = self._segments.arena.pool.largest_free_count
        for node in self.nodes():
            if node.children:
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

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every count is right and pool = free + used. Asked by tests, and when the engine is idle."""
        self._segments.check_integrity()
        pinned = dead = 0
        for node in self._alive:
            parent = node.parent
            is_known = parent is not None and (node.is_private or parent.children.get(node.keys[0]) is node)
            is_whole = node.segment in self._segments.alive and node.begin == (parent.end if parent else -1)
            is_counted = min(node.readers, node.pins, node.copies) >= 0
            is_held = node.pins >= sum(child.pins for child in node.children.values())
            if not (is_known and is_whole and is_counted and is_held and len(node.keys) == node.block_count):
                raise RuntimeError(f"the node of tokens {node.begin} to {node.end} is not in order")
            pinned += node.block_count if node.pins else 0
            dead += node.block_count if node.is_dead else 0
        if (pinned, dead) != (self.pinned_block_count, self.dead_block_count):
            raise RuntimeError(f"{pinned} blocks are pinned and {dead} dead, but counted otherwise")

    def _touch(self, node: Node) -> None:
        for each in node.path():
            each.used_at = self._turn

    def _divide(self, node: Node, block_count: int) -> Node:
        """Make the first blocks of a node a node of their own, above it. The old object stays what its readers hold."""
        assert node.parent is not None, "the top is never divided"
        assert node.segment is not None, "its KV is there, or on its way"
        border = block_count * BLOCK_TOKENS
        first, second = self._segments.divide(node.segment, block_count)
        upper = Node(
            node.root,
            node.parent,
            node.token_ids[:border],
            node.keys[:block_count],
            first,
            node.used_at,
            node.made_at,
            pins=node.pins,
        )
        node.parent.children[upper.keys[0]] = upper
        node.parent, node.begin, node.segment = upper, upper.end, second
        node.token_ids, node.keys = node.token_ids[border:], node.keys[block_count:]
        upper.children[node.keys[0]] = node
        node.root.node_count += 1
        self._alive.add(upper)
        return upper

    def _settle(self, node: Node) -> None:
        """Something that kept a node is gone: free it if nothing does now, or let it be evicted when room is needed."""
        if node.segment is None or node.readers or node.copies or node.pins or node.children:
            return
        if node.is_dead or node.is_private or not node.is_ready:
            self._remove(node)
        else:
            self._least_used.push(node)

    def _remove(self, node: Node) -> None:
        parent, segment = node.parent, node.segment
        assert parent is not None, "the top is never removed"
        assert segment is not None, "a node is removed once"
        self._segments.free(segment)
        node.segment = None
        node.root.block_count -= node.block_count
        node.root.node_count -= 1
        self._alive.remove(node)
        if node.is_dead:
            self.dead_block_count -= node.block_count
        node.is_dead = True
        if node.is_private:
            parent.readers -= 1
        elif parent.children.get(node.keys[0]) is node:
            del parent.children[node.keys[0]]
        self._settle(parent)

    def _detach(self, node: Node) -> None:
        """Hide a living subtree from lookups; the way up stays, for its readers."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.keys[0]]
        node.is_private = True
        parent.readers += 1

    def _count_pinned(self, node: Node, block_count: int) -> None:
        node.root.pinned_block_count += block_count
        self.pinned_block_count += block_count


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
