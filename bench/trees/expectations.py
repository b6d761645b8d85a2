"""What the counts of a prefix tree must be, told from who holds its nodes and not by the tree."""

from collections import Counter

from bench.trees.wood import Tokens
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.node import Node
from workers.engine.segment import Segments
from workers.engine.tree import PrefixTree


def check_counts(
    tree: PrefixTree,
    segments: Segments,
    *,
    tops: list[Node],
    read: list[Node],
    pinned: list[Node],
    copied: list[Node],
    others: int = 0,
) -> None:
    """Raise RuntimeError where a count is another. A node stands once in `read` for each reader, in `pinned` for each cache.

    others: blocks that are held by others than nodes.
    """
    paths = {each for node in (*read, *pinned, *copied) for each in node.path()}
    alive = paths | set(tree.nodes())
    readers, pins, copies = Counter(read), Counter[Node](), Counter(copied)
    for node in pinned:
        pins.update(node.path())
    for node in alive:
        if node.is_private and node.parent is not None:
            readers[node.parent] += 1  # a parent does not list it among its children, and stays for it
    for node in alive:
        expected = (readers[node], pins[node], copies[node])
        actual = (node.readers, node.pins, node.copies)
        if expected != actual:
            raise RuntimeError(f"readers, pins and copies are {expected}, but counted as {actual}")
    taken = others + sum(node.block_count for node in alive if node.segment is not None)
    if taken != segments.arena.pool.used_count:
        raise RuntimeError(f"{taken} blocks are held, but {segments.arena.pool.used_count} are taken")
    for top in tops:
        own = [node for node in alive if node.root is top.root]
        counted = (top.root.counts.resident, top.root.counts.pinned, top.root.node_count)
        held = (
            sum(node.block_count for node in own if node.segment is not None),
            sum(node.block_count for node in own if node.pins),
            len(own),
        )
        if counted != held:
            raise RuntimeError(
                f"blocks, pinned blocks and nodes of a project are {held}, but counted as {counted}"
            )


def common_blocks(text: Tokens, other: Tokens) -> int:
    """Whole blocks that both begin with."""
    count = 0
    while (end := (count + 1) * BLOCK_TOKENS) <= min(len(text), len(other)):
        if text[end - BLOCK_TOKENS : end] != other[end - BLOCK_TOKENS : end]:
            break
        count += 1
    return count
