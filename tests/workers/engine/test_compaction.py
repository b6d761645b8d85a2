"""Scattered paths are moved together when the engine is idle, and rows still share what they shared."""

import time

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending
from workers.engine.step import _cut_alike, _joined

ANSWERED = (Ending.MAX_TOKENS, None)


def runs(driver: Driver) -> int:
    """Of the most scattered path."""
    return driver.engine.call(
        lambda _: max(
            sum(len(each.segment.runs) for each in node.path() if each.segment)
            for node in driver.engine._tree.nodes()
        )
    ).result()


def wait_until_idle(driver: Driver) -> None:
    deadline = time.monotonic() + 30
    while not driver.engine._is_in_order and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_scattered_path_becomes_one_run_and_answers_alike(drive: Drive) -> None:
    driver = drive(blocks=80, pinned_share=1.0)
    for number in range(40):
        driver.build(f"block {number}", random_tokens(64, seed=number))
    for number in range(1, 40, 2):
        driver.drop(f"block {number}")
    for number in range(40, 80):
        driver.build(f"block {number}", random_tokens(64, seed=number))
    text = random_tokens(12 * 64 + 9, seed=100)
    for number in range(41, 66, 2):
        driver.drop(f"block {number}")
    driver.build("cache", text)
    for number in range(66, 80):
        driver.drop(f"block {number}")
    before = driver.ask([1, 2], "cache")
    assert before.outcome == ANSWERED
    wait_until_idle(driver)
    assert runs(driver) == 1
    after = driver.ask([1, 2], "cache")
    assert after.outcome == ANSWERED
    assert after.tokens == before.tokens
    assert_like_oracle(driver.oracle, after)


def test_paths_that_part_keep_what_they_share(drive: Drive) -> None:
    driver = drive(blocks=128)
    talk = random_tokens(100, seed=1)
    for turn in range(7):  # each turn adds a node
        answer = driver.ask(talk, namespace=NAMESPACE, max_output_tokens=40)
        assert answer.outcome == ANSWERED
        talk += [*answer.tokens, *random_tokens(40, seed=turn)]
    wait_until_idle(driver)
    ways = [
        driver.ask([*talk[:at], 5, 6], namespace=NAMESPACE, max_output_tokens=3)
        for at in (150, 250, len(talk))
    ]
    with driver.standing_still():
        together = [driver.ask(way.prompt, namespace=NAMESPACE, max_output_tokens=3) for way in ways]
    for way, other in zip(ways, together, strict=True):
        assert way.outcome == other.outcome == ANSWERED
        assert way.tokens == other.tokens
        assert_like_oracle(driver.oracle, other)


@pytest.mark.parametrize(
    ("ranges", "cut"),
    [
        ([[(0, 10)]], [[(0, 10)]]),
        ([[(0, 10)], [(0, 4)]], [[(0, 4), (4, 10)], [(0, 4)]]),
        ([[(0, 10), (20, 30)], [(5, 10), (22, 25)]], [[(0, 5), (5, 10), (20, 22), (22, 25), (25, 30)], [(5, 10), (22, 25)]]),
        ([[], [(3, 4)]], [[], [(3, 4)]]),
    ],
)  # fmt: skip
def test_ranges_are_cut_where_others_begin_or_end(
    ranges: list[list[tuple[int, int]]], cut: list[list[tuple[int, int]]]
) -> None:
    assert _cut_alike(ranges) == cut


def test_neighbours_are_joined_in_order_alone() -> None:
    assert _joined([(0, 5), (5, 9), (20, 30), (9, 10)]) == [(0, 9), (20, 30), (9, 10)]
