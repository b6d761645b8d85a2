"""Blocks are given out once, given back once, and lie in one run where they can."""

import pytest
from hypothesis import given, strategies as st

from workers.engine.blocks import BlockPool, Run, blocks_for


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)]
)
def test_a_block_holds_64_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_the_smallest_run_that_is_large_enough_is_used() -> None:
    pool = BlockPool(20)
    first, second = pool.allocate(10), pool.allocate(2)
    assert first == (Run(0, 10),)
    assert second == (Run(10, 2),)
    pool.free(first)
    # Free are 0 to 10 and 12 to 20.
    assert pool.allocate(8) == (Run(12, 8),)
    assert pool.allocate(9) == (Run(0, 9),)


def test_without_a_single_run_as_few_as_possible_are_joined() -> None:
    pool = BlockPool(12)
    pieces = [pool.allocate(count) for count in (1, 2, 1, 4, 1, 3)]
    for piece in pieces[1::2]:
        assert piece is not None
        pool.free(piece)
    # Free are 1 to 3, 4 to 8 and 9 to 12.
    assert pool.allocate(6) == (Run(4, 4), Run(9, 2))
    assert pool.allocate(3) == (Run(1, 2), Run(11, 1))
    assert pool.free_count == 0


def test_what_does_not_fit_takes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.free_count == 4
    assert pool.allocate(0) == ()
    assert pool.allocate(4) == (Run(0, 4),)
    assert pool.allocate(1) is None


def test_neighbours_become_one_run_again() -> None:
    pool = BlockPool(9)
    left, middle, right = pool.allocate(3), pool.allocate(3), pool.allocate(3)
    assert left is not None
    assert middle is not None
    assert right is not None
    for runs in (left, right, middle):
        pool.free(runs)
    assert pool.allocate(9) == (Run(0, 9),)


@pytest.mark.parametrize(
    "runs", [(Run(0, 2),), (Run(2, 2),), (Run(1, 3),), (Run(5, 1),), (Run(7, 4),), (Run(-1, 1),)]
)
def test_blocks_that_are_not_in_use_cannot_be_given_back(runs: tuple[Run, ...]) -> None:
    pool = BlockPool(10)
    held = pool.allocate(10)
    assert held is not None
    pool.free((Run(0, 2), Run(3, 1), Run(5, 2)))
    if runs == (Run(2, 2),):
        runs = (Run(2, 2), Run(2, 1))
    with pytest.raises(ValueError, match="not in use"):
        pool.free(runs)


@pytest.mark.trap("T29")
def test_a_leak_and_a_block_with_two_owners_are_found() -> None:
    pool = BlockPool(6)
    held = pool.allocate(4)
    assert held is not None
    pool.check_integrity([*held])
    with pytest.raises(RuntimeError, match="neither"):
        pool.check_integrity([*held, Run(1, 1)])
    with pytest.raises(RuntimeError, match="neither"):
        pool.check_integrity([Run(0, 3)])
    rest = pool.allocate(2)
    assert rest is not None
    with pytest.raises(RuntimeError, match="accounts for 4"):
        pool.check_integrity([*held])


@given(
    st.integers(min_value=1, max_value=40),
    st.lists(
        st.one_of(
            st.integers(min_value=0, max_value=15),
            st.integers(min_value=-50, max_value=-1),  # gives back one that is held
        ),
        max_size=60,
    ),
)
def test_whatever_is_taken_and_given_back_each_block_has_one_owner(size: int, steps: list[int]) -> None:
    pool = BlockPool(size)
    held: list[tuple[Run, ...]] = []
    for step in steps:
        if step >= 0:
            free_before = pool.free_count
            runs = pool.allocate(step)
            assert (runs is None) == (step > free_before)
            if runs is not None:
                assert sum(run.count for run in runs) == step
                held.append(runs)
        elif held:
            pool.free(held.pop(step % len(held)))
        used = [run for runs in held for run in runs]
        pool.check_integrity(used)
        owned = [block for run in used for block in range(run.start, run.end)]
        assert len(owned) == len(set(owned)) == pool.used_count
    for runs in held:
        pool.free(runs)
    assert pool.allocate(size) == (Run(0, size),)
