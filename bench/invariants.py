"""Random walks through prefix trees and their pool, and through all tiers of KV, with everything that must hold checked as they go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bench.trees.tier_walk import TierWalk
from bench.trees.violation import Violation
from bench.trees.walk import Walk
from workers.engine import tree as tree_module
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.keys import BlockKey

SEED = 20261130
WALK_OPERATIONS = 2_500
_OPERATIONS_A_CHECK = 10
_KEYS = 3


def count_walks(operations: int) -> int:
    """How often `explore` calls tick."""
    return -(-operations // WALK_OPERATIONS)


def explore(operations: int, seed: int, tick: Callable[[str], None]) -> None:
    """So many operations, in walks that each begin with nothing: two through the tree, in the second of which most keys
    collide, then two through all tiers, and so on.

    Raises Violation, which names the walk: the same seed takes it again.
    """
    for number in range(count_walks(operations)):
        tick(f"walk {number} of seed {seed}")
        count = min(WALK_OPERATIONS, operations - number * WALK_OPERATIONS)
        if number % 4 == 1:
            with colliding_keys():
                _take(Walk, f"{seed}/{number}", count)
        else:
            _take(TierWalk if number % 4 > 1 else Walk, f"{seed}/{number}", count)


@contextmanager
def colliding_keys() -> Iterator[None]:
    """There are few keys, and tokens alone tell texts apart."""
    with patch.object(tree_module, "block_keys", _few_keys):
        yield


def _few_keys(_: BlockKey, token_ids: tuple[int, ...]) -> list[BlockKey]:
    starts = range(0, len(token_ids) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS)
    return [BlockKey(bytes([sum(token_ids[start : start + BLOCK_TOKENS]) % _KEYS])) for start in starts]


def _take(kind: type[Walk | TierWalk], name: str, operations: int) -> None:
    walk, number = kind(name), 0
    try:
        for number in range(operations):
            walk.step()
            if number % _OPERATIONS_A_CHECK == 0:
                walk.check()
        walk.finish()
    except Exception as error:
        raise Violation(f"walk {name}, operation {number}: {type(error).__name__}: {error}") from error
