"""A prefix tree driven as the engine drives it, in an arena that has one number for each token's keys and one for its values."""

from dataclasses import dataclass, field

import torch

from workers.engine.arena import Arena
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import EngineConfig, ModelShape
from workers.engine.keys import BlockKey
from workers.engine.node import Node
from workers.engine.segment import Segments
from workers.engine.tree import PrefixTree

SHAPE = ModelShape(layers=1, kv_heads=1, head_size=1, context_tokens=8192)
MINE, THEIRS = b"mine", b"theirs"
Tokens = tuple[int, ...]


@dataclass
class Wood:
    """now: what the tree's clock shows, in seconds."""

    tree: PrefixTree
    segments: Segments
    now: list[float] = field(default_factory=lambda: [0.0])

    def find(self, text: Tokens, namespace: bytes = MINE) -> Node:
        match = self.tree.match(self.tree.top(namespace), text)
        assert match.filling is None
        return match.node

    def grow(self, text: Tokens, namespace: bytes = MINE) -> Node:
        """Compute what is not there, and hold it."""
        return self.grow_behind(self.tree.top(namespace), text)

    def grow_behind(self, start: Node, text: Tokens) -> Node:
        """The same, behind a node that is there."""
        match = self.tree.match(start, text)
        assert match.filling is None
        node, known = match.node, match.node.end - start.end
        self.tree.acquire(node)
        if known == len(text):
            return node
        added = self.tree.add(node, text[known:])
        assert added is not None, "no room"
        assert added.segment is not None
        added.segment.length = len(added.token_ids)
        self.tree.release(node)
        return added

    def leave(self, text: Tokens, namespace: bytes = MINE) -> None:
        """Compute it, and let it go."""
        self.tree.release(self.grow(text, namespace))

    @property
    def used(self) -> int:
        return self.segments.arena.pool.used_count


def wood(blocks: int = 64) -> Wood:
    """No page of its arena is touched until something is written there."""
    config = EngineConfig(
        device=torch.device("cpu"),
        dtype=torch.int64,
        arena_bytes=blocks * BLOCK_TOKENS * SHAPE.kv_bytes_per_token(torch.int64),
        prefill_chunk_tokens=1,
        max_running_requests=1,
        max_waiting_requests=0,
        tail_tokens=1,
    )
    segments = Segments(Arena(SHAPE, config))
    now = [0.0]
    tree = PrefixTree(segments, BlockKey, lambda: now[0])
    segments.make_room = tree.evict
    return Wood(tree, segments, now)
