"""Which node to evict next."""

import heapq

from workers.engine.node import Node, Root


class LeastUsed:
    """A heap of nodes a namespace, by when they were used last. Entries may be outdated: they are checked when they come up."""

    def __init__(self) -> None:
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
            heap[:] = {id(n): (n.used_at, k, n) for _, k, n in heap if n.is_evictable}.values()
            heapq.heapify(heap)

    def pop(self) -> Node | None:
        """Of the namespace that holds most automatic KV, the node that was used least of late; None where there is none."""
        for root in sorted(self._heaps, key=lambda root: -root.automatic_block_count):
            heap = self._heaps[root]
            while heap:
                used_at, _, node = heapq.heappop(heap)
                if not node.is_evictable:
                    continue
                if node.used_at == used_at:
                    return node
                self.push(node)
            del self._heaps[root]
        return None
