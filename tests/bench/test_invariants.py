"""10,000 operations of the walks that `bench invariants` takes a million of, and proof that they find faults."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from bench.invariants import WALK_OPERATIONS, count_walks, explore
from bench.trees.violation import Violation
from workers.engine import compaction, tree as tree_module
from workers.engine.kept_files import KeptFiles
from workers.engine.kept_host import KeptHost
from workers.engine.keys import BlockKey
from workers.engine.node import Counts, Node
from workers.engine.residence import Residence
from workers.engine.segment import Segment
from workers.engine.stored import FileCopy, Stored
from workers.engine.tree import PrefixTree


@pytest.mark.trap("T27")
@pytest.mark.trap("T29")
@pytest.mark.trap("T36")
def test_whatever_is_done_everything_holds() -> None:
    ticks: list[str] = []
    explore(10_000, seed=1, tick=ticks.append)
    assert len(ticks) == count_walks(10_000) == 4


def test_a_walk_can_be_shorter() -> None:
    explore(WALK_OPERATIONS + 7, seed=2, tick=lambda _: None)
    assert count_walks(1) == 1


def _forget_nothing(self: PrefixTree, node: Node) -> None:
    pass


def _count_wrong(self: Counts, node: Node, sign: int) -> None:
    self.pinned += sign * node.block_count * (node.pins > 1)


def _by_key_alone(node: Node, keys: list[BlockKey], _: tuple[int, ...], position: int) -> int:
    return next(
        (count for count, key in enumerate(node.keys) if [key] != keys[position + count :][:1]),
        len(node.keys),
    )


def _copy_nothing(_: Any, target: Segment, source: Segment, begin: int, end: int) -> None:
    target.length += end - begin


def _keep_dead(self: PrefixTree, node: Node) -> None:
    if not node.is_dead:
        settle(self, node)


def _keep_the_file(self: KeptFiles, part: Stored) -> None:
    copy = part.file
    if copy is not None:
        self._set(part, None)
        copy.parts.remove(part)


def _say_it_is_there(self: Residence, copy: FileCopy, parts: list[Stored]) -> None:
    load_file(self, copy, parts)
    for part in parts:
        assert part.segment is not None
        part.segment.length = len(part.token_ids)


def _leave_out_the_upper(self: PrefixTree, node: Node, block_count: int) -> Node:
    upper = divide(self, node, block_count)
    for transfer in upper.transfers:
        transfer.parts.remove(upper)
    upper.transfers.clear()
    return upper


def _may_leave_the_only_copy(_: KeptHost, node: Node) -> bool:
    return node.host is not None and not node.transfers


def _evict_what_is_read(self: PrefixTree, block_count: int) -> None:
    leaves = [node for node in self.nodes() if node.readers and not node.children and not node.pins]
    if leaves and random.Random(block_count).random() < 0.5:
        self._remove(leaves[0])


settle, divide = PrefixTree.settle, PrefixTree._divide
load_file = Residence._load_file


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (PrefixTree, "forget", _forget_nothing),
        (Counts, "add", _count_wrong),
        (PrefixTree, "settle", _keep_dead),
        (PrefixTree, "evict", _evict_what_is_read),
        (tree_module, "_agreeing_blocks", _by_key_alone),
        (compaction, "append_segment", _copy_nothing),
        (KeptFiles, "discard", _keep_the_file),
        pytest.param(KeptHost, "_may_leave", _may_leave_the_only_copy, marks=pytest.mark.long),
        (Residence, "_load_file", _say_it_is_there),
        (PrefixTree, "_divide", _leave_out_the_upper),
    ],
)
def test_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(Violation, match=r"walk 13/\d+, operation \d+: \w+: "):
        explore(30_000, seed=13, tick=lambda _: None)
