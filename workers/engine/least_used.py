"""Which node to evict next."""

import heapq
from collections.abc import Callable

from workers.engine.node import Node, Root

_LOOKED_AT = 64


class LeastUsed:
    """A heap of nodes a namespace, by when they were used last: of those that caches pin, or of the others.

    Entries may be outdated: they are checked when they come up.
    """

    def __init__(self, *, are_pinned: bool) -> None:
        self._are_pinned = are_pinned
        self._heaps: dict[Root, list[tuple[int, int, Node]]] = {}
        self._number = 0

    def push(self, node: Node) -> None:
        """It can be evicted now."""
        self._number += 1
        heap = self._heaps.setdefault(node.root, [])
        heapq.heappush(heap, (node.used_at, self._number, node))
        if (
            len(heap) > 2 * node.root.node_count + 16
        ):  # mostly outdated: a node is pushed each time it is let go
            heap[:] = {id(n): (n.used_at, k, n) for _, k, n in heap if self._fits(n)}.values()
            heapq.heapify(heap)

    def pop(self) -> Node | None:
        """Of the namespace that holds most of this kind, the node that was used least of late; None where there is none."""
        for root in self._greatest_first():
            heap = self._heaps[root]
            while heap:
                used_at, _, node = heapq.heappop(heap)
                if not self._fits(node):
                    continue
                if node.used_at == used_at:
                    return node
                self.push(node)
            del self._heaps[root]
        return None

    def peek(self, wanted: Callable[[Node], bool]) -> Node | None:
        """One that comes up soon and is wanted. Looks at the first few only."""
        for root in self._greatest_first():
            for _, _, node in self._heaps[root][:_LOOKED_AT]:
                if self._fits(node) and wanted(node):
                    return node
        return None

    def _fits(self, node: Node) -> bool:
        return node.is_evictable and (node.pins > 0) == self._are_pinned

    def _greatest_first(self) -> list[Root]:
        def size(root: Root) -> int:
            return root.counts.resident_pinned if self._are_pinned else root.counts.automatic

        return sorted(self._heaps, key=size, reverse=True)
