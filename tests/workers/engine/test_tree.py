"""The prefix tree by itself: what it finds, shares, divides, keeps, evicts and forgets. Whatever may happen in any order is in tests/bench/test_invariants.py."""

import pytest

from bench.trees.wood import MINE, THEIRS, Tokens, wood
from tests.workers.engine.tiny import random_tokens
from workers.engine import tree as tree_module
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.stored import Transfer


def tokens(blocks: int, seed: int = 0) -> Tokens:
    return tuple(random_tokens(blocks * BLOCK_TOKENS, seed=seed))


def test_what_two_texts_share_is_there_once() -> None:
    trees = wood()
    shared, first, second = tokens(4), tokens(2, 1), tokens(3, 2)
    one, other = trees.grow(shared + first), trees.grow(shared + second)
    assert trees.used == 4 + 2 + 3
    assert [node.end for node in one.path()] == [256, 384]
    assert one.path()[0] is other.path()[0]
    assert (one.begin, other.begin) == (256, 256)
    trees.tree.check_integrity()


def test_a_node_is_divided_where_texts_part_and_its_readers_keep_their_path() -> None:
    trees = wood()
    text = tokens(5)
    reader = trees.grow(text)
    lies = [window for node in reader.path() if node.segment for window in node.segment.filled()]
    half = trees.find(text[: 3 * 64 + 5])
    assert half.end == 192
    path = reader.path()
    assert [len(node.token_ids) for node in path] == [192, 128]
    assert path[-1] is reader
    begin, stop = lies[0]
    assert [node.segment.filled() for node in path if node.segment] == [
        [(begin, begin + 192)],
        [(begin + 192, stop)],
    ]
    trees.tree.check_integrity()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129])
def test_only_whole_blocks_are_found(length: int) -> None:
    trees = wood()
    text = tokens(2)
    trees.leave(text)
    assert trees.find((*text, 1, 2, 3)[:length]).end == length // 64 * 64


@pytest.mark.trap("T20")
def test_namespaces_never_meet() -> None:
    trees = wood()
    text = tokens(3)
    trees.leave(text)
    assert trees.find(text, THEIRS).end == 0
    trees.leave(text, THEIRS)
    assert trees.used == 6


@pytest.mark.trap("T15")
def test_a_collision_of_keys_finds_nothing_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every key alike, tokens alone decide."""
    monkeypatch.setattr(tree_module, "block_keys", lambda _, text: [b"same"] * (len(text) // BLOCK_TOKENS))
    trees = wood()
    trees.leave(tokens(2, 1))
    assert trees.find(tokens(2, 2)).end == 0
    other = trees.grow(tokens(2, 2))
    assert trees.find(tokens(2, 1)).end == 128
    trees.tree.check_integrity()
    trees.tree.release(other)
    assert trees.used == 2
    trees.tree.check_integrity()


def test_what_is_being_computed_is_waited_for_as_far_as_it_is_wanted() -> None:
    trees = wood()
    text = tokens(4)
    filling = trees.tree.add(trees.tree.top(MINE), text)
    assert filling is not None
    assert filling.segment is not None
    assert trees.tree.match(trees.tree.top(MINE), text).filling is filling
    filling.segment.length = 100
    assert trees.find(text[:64]).end == 64
    assert trees.tree.match(trees.tree.top(MINE), text[:128]).filling is filling
    assert (filling.begin, filling.length, filling.is_ready) == (64, 36, False)
    trees.tree.check_integrity()
    trees.tree.release(filling)  # given up: what is whole stays, what was begun goes
    assert trees.used == 1
    trees.tree.check_integrity()


class TestEviction:
    @pytest.mark.trap("T36")
    def test_the_least_used_first_and_the_end_of_a_text_before_its_beginning(self) -> None:
        trees = wood(blocks=8)
        old, new = tokens(4, 1), tokens(4, 2)
        trees.leave(old)
        trees.leave(new)
        trees.find(old)  # used again
        trees.leave(tokens(1, 3))
        assert trees.find(new).end == 192
        assert trees.find(old).end == 256
        assert trees.tree.evicted_block_count == 1

    def test_what_is_read_pinned_or_copied_stays(self) -> None:
        trees = wood(blocks=6)
        read = trees.grow(tokens(2, 1))
        pinned, copied = trees.grow(tokens(2, 2)), trees.grow(tokens(2, 3))
        trees.tree.pin(pinned)
        Transfer([copied])
        for node in (pinned, copied):
            trees.tree.release(node)
        assert trees.tree.add(trees.tree.top(MINE), tokens(1, 4)) is None
        trees.tree.release(read)
        trees.leave(tokens(1, 4))
        assert trees.find(tokens(2, 2)).end == trees.find(tokens(2, 3)).end == 128
        assert trees.find(tokens(2, 1)).end == 64

    def test_the_project_with_most_automatic_kv_gives_first(self) -> None:
        trees = wood(blocks=10)
        trees.leave(tokens(3, 1), THEIRS)
        for seed in range(7):
            trees.leave(tokens(1, 10 + seed))
        trees.leave(tokens(2, 2), THEIRS)
        assert trees.find(tokens(3, 1), THEIRS).end == 192
        assert [trees.find(tokens(1, 10 + seed)).end for seed in range(7)] == [0, 0] + [64] * 5

    def test_pins_do_not_count_as_automatic(self) -> None:
        trees = wood(blocks=10)
        pinned = trees.grow(tokens(6, 1))
        trees.tree.pin(pinned)
        trees.tree.release(pinned)
        trees.leave(tokens(4, 2), THEIRS)
        trees.leave(tokens(1, 3))
        assert trees.find(tokens(4, 2), THEIRS).end == 192
        assert trees.find(tokens(6, 1)).end == 384


class TestPins:
    def test_they_are_counted_once_for_shared_blocks(self) -> None:
        trees = wood()
        shared = tokens(4)
        one, other = trees.grow(shared + tokens(1, 1)), trees.grow(shared + tokens(2, 2))
        for node in (one, other):
            trees.tree.pin(node)
            trees.tree.release(node)
        assert trees.tree.counts.pinned == 7
        assert trees.tree.pinned_blocks(trees.tree.top(MINE), shared + tokens(5, 3)) == 4
        assert trees.tree.pinned_blocks(trees.tree.top(MINE), shared[:100]) == 1
        trees.tree.unpin(one, forget=True)
        assert (trees.tree.counts.pinned, trees.used) == (6, 6)
        trees.tree.unpin(other, forget=True)
        assert (trees.tree.counts.pinned, trees.used) == (0, 0)
        trees.tree.check_integrity()

    def test_what_was_built_upon_a_cache_goes_with_it(self) -> None:
        trees = wood()
        cache, talk = tokens(2), tokens(2, 1)
        node = trees.grow(cache)
        trees.tree.pin(node)
        trees.tree.release(node)
        trees.leave(cache + talk)
        trees.tree.unpin(node, forget=True)
        assert trees.used == 0
        assert trees.find(cache).end == 0

    def test_readers_finish_first_and_nobody_new_finds_it(self) -> None:
        trees = wood()
        cache = tokens(2)
        node = trees.grow(cache)
        trees.tree.pin(node)
        reader = trees.grow(cache + tokens(1, 1))
        trees.tree.release(node)
        trees.tree.unpin(node, forget=True)
        assert trees.find(cache).end == 0
        assert (trees.used, trees.tree.counts.dead) == (3, 3)
        again = trees.grow(cache)
        late = trees.tree.add(reader, tokens(1, 2))  # it goes on, for itself alone
        assert late is not None
        trees.tree.check_integrity()
        trees.tree.release(reader)
        assert trees.used == 3 + 2 + 1
        trees.tree.release(late)
        assert (trees.used, trees.tree.counts.dead) == (2, 0)
        trees.tree.release(again)
        trees.tree.check_integrity()

    def test_a_build_that_is_given_up_leaves_what_others_had(self) -> None:
        trees = wood()
        text = tokens(2)
        trees.leave(text)
        node = trees.grow(text)
        trees.tree.pin(node)
        trees.tree.unpin(node, forget=False)
        trees.tree.release(node)
        assert trees.find(text).end == 128

    @pytest.mark.trap("T27")
    def test_counts_below_nothing_are_bugs(self) -> None:
        trees = wood()
        node = trees.grow(tokens(1))
        with pytest.raises(RuntimeError, match="unpinned"):
            trees.tree.unpin(node, forget=False)
        node.pins = 0
        trees.tree.release(node)
        with pytest.raises(RuntimeError, match="released"):
            trees.tree.release(node)


def test_automatic_kv_is_forgotten_after_its_time_however_often_it_is_used() -> None:
    trees = wood()
    old, pinned = tokens(2, 1), tokens(2, 2)
    trees.leave(old)
    node = trees.grow(pinned)
    trees.tree.pin(node)
    trees.tree.release(node)
    trees.now[0] = 50.0
    trees.find(old)
    trees.leave(old + tokens(1, 3))
    trees.now[0] = 101.0
    trees.leave(tokens(1, 4))
    trees.tree.forget_older_than(100.0)
    assert trees.find(old).end == 0
    assert trees.find(pinned).end == 128
    assert trees.find(tokens(1, 4)).end == 64
    assert trees.used == 3


def test_a_private_copy_of_a_cache_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a collision of keys a pinned node is nobody's child."""
    monkeypatch.setattr(tree_module, "block_keys", lambda _, text: [b"same"] * (len(text) // BLOCK_TOKENS))
    trees = wood()
    trees.leave(tokens(1) + tokens(1, 1))
    node = trees.grow(tokens(1) + tokens(1, 2))
    assert node.is_private
    trees.tree.pin(node)
    trees.tree.release(node)
    trees.tree.unpin(node, forget=True)
    assert trees.used == 0
    trees.tree.check_integrity()


def test_nodes_that_lie_side_by_side_are_not_scattered() -> None:
    trees = wood()
    for count in range(1, 7):
        trees.leave(tuple(token for seed in range(count) for token in tokens(1, seed)))
    assert trees.tree.scattered_path(1) is None
