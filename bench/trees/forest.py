"""A large tree as a busy project leaves it: documents, conversations upon them turn by turn, and branches at every depth."""

import random
from collections.abc import Callable

from bench.trees.wood import MINE, Tokens, Wood
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.node import Node

NODES_A_TICK = 1_000
_VOCABULARY = 49_152
_IDS = tuple(
    range(_VOCABULARY)
)  # shared by all texts: an integer of its own for each token would take gigabytes
_LONGEST_TURN, _SHORTEST_TALK = 4, 8  # blocks
_NEW, _WHOLE, _PINNED = 0.1, 0.25, 0.1  # of all conversations: upon a new document, as long as can be, pinned


def grow(
    wood: Wood, node_count: int, blocks: int, dice: random.Random, tick: Callable[[str], None]
) -> list[Node]:
    """Plant so many nodes or a few more. Gives the ends of the conversations that are exactly so many blocks long."""
    top = wood.tree.top(MINE)
    known: list[Node] = [top]
    whole: list[Node] = []
    ticks = 0
    while top.root.node_count < node_count:
        length = blocks if dice.random() < _WHOLE else dice.randrange(_SHORTEST_TALK, blocks)
        node = _branch(wood, dice, known)
        while (missing := length - node.end // BLOCK_TOKENS) > 0:
            turn = draw(dice, min(missing, dice.randrange(1, _LONGEST_TURN + 1)))
            node = wood.grow_behind(node, turn)
            wood.tree.release(node)
            known.append(node)
        if dice.random() < _PINNED:
            wood.tree.pin(node)
        if node.end == blocks * BLOCK_TOKENS:
            whole.append(node)
        while ticks < top.root.node_count // NODES_A_TICK and ticks < node_count // NODES_A_TICK:
            tick(f"{top.root.node_count:,} nodes")
            ticks += 1
    return whole


def draw(dice: random.Random, blocks: int) -> Tokens:
    """A text that nobody has seen."""
    return tuple(dice.choices(_IDS, k=blocks * BLOCK_TOKENS))


def _branch(wood: Wood, dice: random.Random, known: list[Node]) -> Node:
    """Where a conversation begins: with a new document, or anywhere in an earlier one, also in the middle of a turn."""
    node = known[0] if dice.random() < _NEW else dice.choice(known)
    if node.parent is None:
        return node
    part = node.token_ids[: dice.randrange(1, node.block_count + 1) * BLOCK_TOKENS]
    return wood.tree.match(node.parent, part).node
