"""A cache that has no room so far holds up nobody who needs none, and nobody who comes later holds it up for ever."""

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer, Driver, assert_like_oracle
from tests.workers.engine.test_tiers import ANSWERED, BUILT, SCATTERED, Gate, check
from tests.workers.engine.tiny import random_tokens
from workers.engine import scheduler

NO_END_SECONDS = 8.0


@pytest.fixture
def driver(drive: Drive, tmp_path: Path) -> Driver:
    """A cache takes most of the arena: a second one like it has to wait until nobody reads the first."""
    driver = drive(blocks=12, pinned_share=0.75, disk=tmp_path / "kv")
    driver.build("read", random_tokens(550, seed=1))
    driver.let_files_settle()
    return driver


def start_waiting(driver: Driver, *, is_urgent: bool = True) -> Answer:
    """A new cache, or one that is built again for nobody."""
    tokens = random_tokens(550, seed=2)
    return driver.start_build("waits", tokens, is_rebuild=not is_urgent, is_urgent=is_urgent)


def at_token(actions: dict[int, Callable[[], None]]) -> Callable[[int], bool]:
    """Do something at the n-th token of an answer."""
    numbers = count(1)

    def take(_: int) -> bool:
        actions.get(next(numbers), lambda: None)()
        return False

    return take


@pytest.mark.parametrize("is_urgent", [True, False])
def test_a_cache_without_room_lets_pass_who_needs_none(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, is_urgent: bool
) -> None:
    """One that somebody waits for while its patience lasts, and one that is built again for nobody however long."""
    monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 3600.0 if is_urgent else 0.0)
    build: list[Answer] = []
    passing: list[Answer] = []
    had_ended: list[bool] = []

    def come() -> None:
        passing.extend(driver.ask([5, 6, number], "read", max_output_tokens=3) for number in range(3))
        passing.extend(driver.ask([7, 8, number], max_output_tokens=3) for number in range(3))

    reader = driver.ask(
        [1, 2, 3],
        "read",
        max_output_tokens=110,
        on_token=at_token(
            {
                5: lambda: build.append(start_waiting(driver, is_urgent=is_urgent)),
                15: come,
                100: lambda: had_ended.extend(each.ended.is_set() for each in (*passing, *build)),
            }
        ),
    )
    assert reader.outcome == ANSWERED
    assert had_ended == [True] * 6 + [False]
    for answer in (reader, *passing):
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer, SCATTERED)
    assert build[0].outcome == BUILT
    assert [check(driver, cache_id) for cache_id in ("waits", "read")] == [7, 7]


def test_a_cache_that_has_waited_gets_its_turn_against_a_stream_of_requests(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads what stands in its way, and asks the next one before it ends."""
    monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 0.5)
    no_end = time.monotonic() + NO_END_SECONDS
    build: list[Answer] = []
    stream: list[Answer] = []

    def go_on() -> None:
        if not (build and build[0].ended.is_set()) and time.monotonic() < no_end:
            next_one()

    def next_one() -> None:
        actions = {6: go_on}
        if not stream:
            actions[3] = lambda: build.append(start_waiting(driver))
        stream.append(
            driver.ask([1, 2, len(stream) % 100], "read", max_output_tokens=20, on_token=at_token(actions))
        )

    next_one()
    assert stream[0].outcome == ANSWERED
    assert build[0].outcome == BUILT
    assert time.monotonic() < no_end, "it had to wait for the end of the stream"
    before = driver.events[: driver.events.index("waits")]
    assert len(set(before)) > 3, "meanwhile others went on"
    for answer in stream:
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer, SCATTERED)
    assert [check(driver, cache_id) for cache_id in ("waits", "read")] == [7, 7]


def test_a_cache_that_had_no_room_once_and_waits_for_the_disk_holds_up_nobody(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(450, seed=3)
    driver.build("beginning", tokens[:256])
    driver.give_up_arena()
    monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 0.05)
    build: list[Answer] = []
    gates: list[Gate] = []

    def begin() -> None:
        gates.append(Gate(monkeypatch, "read_into"))
        build.append(driver.start_build("waits", tokens))

    actions = {5: begin, 15: lambda: time.sleep(0.1)}
    assert driver.ask([1, 2, 3], "read", max_output_tokens=20, on_token=at_token(actions)).outcome == ANSWERED
    (gate,) = gates
    assert gate.reached.wait(60)
    time.sleep(0.1)
    passing = driver.ask([7, 8], max_output_tokens=3)
    try:
        assert passing.ended.wait(20), "it waits for the disk, too"
    finally:
        gate.opened.set()
    assert build[0].outcome == BUILT
    assert check(driver, "waits") == 7
