"""A node of the prefix tree: the KV of whole blocks, behind the KV of all nodes above it."""

from dataclasses import dataclass, field

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.keys import BlockKey
from workers.engine.stored import Stored


@dataclass(slots=True)
class Counts:
    """Blocks. resident: in the arena. pinned: of caches, wherever they lie. resident_pinned: both. fixed: pinned, in the
    arena and nowhere else: it cannot be moved. dead: in the arena for their readers alone."""

    resident: int = 0
    pinned: int = 0
    resident_pinned: int = 0
    fixed: int = 0
    dead: int = 0

    def add(self, node: "Node", sign: int) -> None:
        """Count a node, or (sign -1) no longer."""
        count = sign * node.block_count
        is_resident, is_pinned = node.segment is not None, node.pins > 0
        self.resident += count * is_resident
        self.pinned += count * is_pinned
        self.resident_pinned += count * (is_pinned and is_resident)
        self.fixed += count * (is_pinned and is_resident and not node.has_copy)
        self.dead += count * (node.is_dead and is_resident)

    @property
    def automatic(self) -> int:
        """In the arena, and pinned by no cache."""
        return self.resident - self.resident_pinned


@dataclass(slots=True, eq=False)
class Root:
    """Where the KV of one namespace begins, or that of nobody (`is_shared` False): no request finds what stands there.

    node_count: of all its nodes, dead ones too.
    """

    key: BlockKey
    is_shared: bool = True
    counts: Counts = field(default_factory=Counts)
    node_count: int = 0


@dataclass(slots=True, eq=False)
class Node(Stored):
    """Tokens [begin, end) of every text that leads here, and where their KV lies.

    keys: of each of its blocks. Three separate counts keep it: readers: requests and builds whose path ends here; pins:
    caches whose path leads here or through here; copies: transfers of its KV under way. A node with children stays for
    them; one with children in the arena stays there. Dead: no lookup finds it any more, it only waits for its readers.
    """

    root: Root
    parent: "Node | None"
    keys: list[BlockKey]
    made_at: float = 0.0
    children: "dict[BlockKey, Node]" = field(default_factory=dict)
    resident_children: int = 0
    readers: int = 0
    pins: int = 0
    is_dead: bool = False
    is_private: bool = False
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.begin = 0 if self.parent is None else self.parent.end
        self.end = self.begin + len(self.token_ids)

    @property
    def block_count(self) -> int:
        return len(self.token_ids) // BLOCK_TOKENS

    @property
    def last_key(self) -> BlockKey:
        return self.keys[-1] if self.keys else self.root.key

    @property
    def is_evictable(self) -> bool:
        """Its place in the arena can be had: nobody reads, copies or computes it, and nothing there stands upon it.

        What a cache pins must lie elsewhere too.
        """
        return (
            self.parent is not None
            and self.is_ready
            and not (self.resident_children or self.readers or self.transfers)
            and not (self.is_dead or self.is_private)
            and (self.pins == 0 or self.has_copy)
        )

    @property
    def is_findable(self) -> bool:
        return not (self.is_dead or self.is_private)

    def path(self) -> "list[Node]":
        """From the first node to itself, without the one that stands for the root."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def subtree(self) -> "list[Node]":
        """Itself and all below, parents first."""
        nodes = [self]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes
