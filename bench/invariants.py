"""Random walks through prefix trees and their pool, with everything that must hold checked as they go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bench.trees.walk import Violation, Walk
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
    """So many operations, in walks that each begin with an empty tree; in every other one most keys collide.

    Raises Violation, which names the walk: the same seed takes it again.
    """
    for number in range(count_walks(operations)):
        tick(f"walk {number} of seed {seed}")
        count = min(WALK_OPERATIONS, operations - number * WALK_OPERATIONS)
        if number % 2:
            with colliding_keys():
                _take(f"{seed}/{number}", count)
        else:
            _take(f"{seed}/{number}", count)


@contextmanager
def colliding_keys() -> Iterator[None]:
    """There are few keys, and tokens alone tell texts apart."""
    with patch.object(tree_module, "block_keys", _few_keys):
        yield


def _few_keys(_: BlockKey, token_ids: tuple[int, ...]) -> list[BlockKey]:
    starts = range(0, len(token_ids) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS)
    return [BlockKey(bytes([sum(token_ids[start : start + BLOCK_TOKENS]) % _KEYS])) for start in starts]


def _take(name: str, operations: int) -> None:
    walk, number = Walk(name), 0
    try:
        for number in range(operations):
            walk.step()
            if number % _OPERATIONS_A_CHECK == 0:
                walk.check()
        walk.finish()
    except Exception as error:
        raise Violation(f"walk {name}, operation {number}: {type(error).__name__}: {error}") from error
