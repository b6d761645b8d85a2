"""A node of the prefix tree: the KV of whole blocks, behind the KV of all nodes above it."""

from dataclasses import dataclass, field

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.keys import BlockKey
from workers.engine.segment import Segment


@dataclass(slots=True, eq=False)
class Root:
    """Where the KV of one namespace begins, or that of nobody (`is_shared` False): no request finds what stands there.

    block_count, pinned_block_count: of all its nodes in the arena. node_count: of all its nodes, dead ones too.
    """

    key: BlockKey
    is_shared: bool = True
    block_count: int = 0
    pinned_block_count: int = 0
    node_count: int = 0

    @property
    def automatic_block_count(self) -> int:
        """Blocks that no cache pins."""
        return self.block_count - self.pinned_block_count


@dataclass(slots=True, eq=False)
class Node:
    """Tokens [begin, end) of every text that leads here, and where their KV lies.

    keys: of each of its blocks. Ready: all its KV is written, others may read. Three separate counts keep it:
    readers: requests and builds whose path ends here; pins: caches whose path leads here or through here; copies: transfers
    of its KV under way. A node with children stays for them. Dead: no lookup finds it any more, it only waits for its readers.
    """

    root: Root
    parent: "Node | None"
    token_ids: tuple[int, ...]
    keys: list[BlockKey]
    segment: Segment | None
    used_at: int = 0
    made_at: float = 0.0
    children: dict[BlockKey, "Node"] = field(default_factory=dict)
    readers: int = 0
    pins: int = 0
    copies: int = 0
    is_dead: bool = False
    is_private: bool = False
    begin: int = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.begin = 0 if self.parent is None else self.parent.end
        self.end = self.begin + len(self.token_ids)

    @property
    def block_count(self) -> int:
        return len(self.token_ids) // BLOCK_TOKENS

    @property
    def length(self) -> int:
        """Tokens whose KV is written."""
        return 0 if self.segment is None else self.segment.length

    @property
    def is_ready(self) -> bool:
        return self.length == len(self.token_ids)

    @property
    def last_key(self) -> BlockKey:
        return self.keys[-1] if self.keys else self.root.key

    @property
    def is_evictable(self) -> bool:
        """Nobody needs it: what is read, pinned, copied, being computed or below others stays."""
        return (
            self.parent is not None
            and self.is_ready
            and not (
                self.children or self.readers or self.pins or self.copies or self.is_dead or self.is_private
            )
        )

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
