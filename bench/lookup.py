"""How long the engine looks for the longest known prefix of a prompt, in a tree as large as it gets."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.figures import median, nearest_rank
from bench.plan import Plan
from bench.roster import OURS
from bench.trees import forest
from bench.trees.wood import MINE, wood
from bench.workload import SEED
from workers.engine.blocks import BLOCK_TOKENS

PROMPT_BLOCKS = 125  # 8,000 tokens; the last block is new
_BLOCKS_A_NODE = 4  # at most


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds: of each lookup, keys included. nodes, blocks: of the tree. path_nodes: how many nodes each lookup has found."""

    seconds: list[float]
    nodes: int
    blocks: int
    path_nodes: list[int]


def count_steps(plan: Plan) -> int:
    return plan.lookup_nodes // forest.NODES_A_TICK + plan.lookup_rounds


def measure(plan: Plan, tick: Callable[[str], None]) -> Measured:
    """Each prompt is one of the longest texts of the tree, and a block that nobody has seen."""
    dice = random.Random(SEED)  # noqa: S311 - tokens, no secrets
    trees = wood(plan.lookup_nodes * _BLOCKS_A_NODE)
    ends = forest.grow(trees, plan.lookup_nodes, PROMPT_BLOCKS - 1, dice, tick)
    top, seconds, path_nodes = trees.tree.top(MINE), [], []
    for end in dice.sample(ends, plan.lookup_rounds):
        tick("looking up")
        known = tuple(token for node in end.path() for token in node.token_ids)
        prompt = known + forest.draw(dice, 1)
        started = time.perf_counter()
        found = trees.tree.match(top, prompt)
        seconds.append(time.perf_counter() - started)
        if found.node is not end or len(prompt) != PROMPT_BLOCKS * BLOCK_TOKENS:
            raise RuntimeError(f"{found.node.end} tokens were found of {end.end}")
        path_nodes.append(len(end.path()))
    return Measured(seconds, top.root.node_count, top.root.counts.resident, path_nodes)


def figures(measured: Measured) -> dict[str, float | None]:
    return {
        "lookup_ms": _ms(median(measured.seconds)),
        "lookup_p99_ms": _ms(nearest_rank(measured.seconds, 0.99)),
    }


def absolutes(measured: Measured) -> dict[str, dict[str, Any]]:
    size = {
        "blocks": measured.blocks,
        "path_nodes": median([float(count) for count in measured.path_nodes]),
        "lookup_s": median(measured.seconds),
        "lookups_s": measured.seconds,
    }
    return {OURS: {f"{measured.nodes} nodes": size}}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
