import random
from dataclasses import replace

import pytest

from bench import lookup
from bench.plan import QUICK
from bench.trees import forest
from bench.trees.wood import MINE, wood
from workers.engine.blocks import BLOCK_TOKENS

PLAN = replace(QUICK, lookup_nodes=2000, lookup_rounds=5)


def test_lookups_in_a_small_tree() -> None:
    ticks: list[str] = []
    measured = lookup.measure(PLAN, ticks.append)
    assert len(ticks) == lookup.count_steps(PLAN)
    assert 2000 <= measured.nodes < 2200
    assert measured.blocks >= measured.nodes
    assert len(measured.seconds) == 5
    assert min(measured.path_nodes) > 20, "a long conversation has many turns"
    figures = lookup.figures(measured)
    assert figures["lookup_ms"] == pytest.approx(1e3 * sorted(measured.seconds)[2])
    assert figures["lookup_p99_ms"] == pytest.approx(1e3 * max(measured.seconds))


def test_a_forest_has_branches_at_many_depths() -> None:
    trees = wood(8000)
    ends = forest.grow(trees, 2000, 30, random.Random(1), lambda _: None)
    nodes = list(trees.tree.nodes())
    assert {end.end for end in ends} == {30 * BLOCK_TOKENS}
    depths = {node.end for node in nodes if len(node.children) > 1}
    assert len(depths) > 20
    assert len(trees.tree.top(MINE).children) > 5
    assert 0 < sum(node.block_count for node in nodes if node.pins) < trees.used
    trees.tree.check_integrity()
