"""Pins, other projects and broken parts leave everybody else their room, whatever tier they are on their way to."""

import errno
import os
import time
from pathlib import Path

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Answer, Driver
from tests.workers.engine.test_tiers import ANSWERED, BUILT, Gate, check, files
from tests.workers.engine.tiny import random_tokens
from workers.engine import engine as engine_module
from workers.engine.residence import Residence
from workers.engine.sequence import Ending
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import TierUnavailable

STRANGER = b"another project"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def test_pins_that_are_not_written_yet_leave_requests_their_room(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T32, with a slow disk: a second cache waits for the first to be written, and a request does not wait for either."""
    driver = drive(blocks=20, disk=folder)
    gate = Gate(monkeypatch, "write")
    driver.build("first", random_tokens(600, seed=1))
    assert gate.reached.wait(60)
    second = driver.start_build("second", random_tokens(600, seed=2))
    answer = driver.ask(random_tokens(300, seed=3), max_output_tokens=3)
    assert answer.outcome == ANSWERED
    assert not second.ended.is_set()
    gate.opened.set()
    assert second.outcome == BUILT
    assert [check(driver, name) for name in ("first", "second")] == [7, 7]


def test_a_disk_that_fails_leaves_a_waiting_cache_an_answer(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(blocks=20, disk=folder)

    def fail(*_: object) -> None:
        raise TierUnavailable("as the test would have it")

    monkeypatch.setattr(DiskStore, "write", fail)
    driver.build("first", random_tokens(600, seed=1))
    refused = driver.start_build("second", random_tokens(600, seed=2))
    assert refused.ending == Ending.FAILED
    assert refused.error is not None
    assert refused.error.code == "arena_full"


def leave(driver: Driver, seed: int, namespace: bytes = NAMESPACE) -> None:
    answer = driver.ask(random_tokens(200, seed=seed), namespace=namespace, max_output_tokens=2)
    assert answer.outcome == ANSWERED


def found(driver: Driver, seed: int, namespace: bytes) -> int:
    answer = driver.ask(random_tokens(200, seed=seed), namespace=namespace, max_output_tokens=1)
    assert answer.outcome == ANSWERED
    return answer.reused[0]


@pytest.mark.parametrize("tier", ["disk", "host"])
def test_below_the_arena_too_the_project_with_most_gives_first(drive: Drive, folder: Path, tier: str) -> None:
    driver = drive(
        blocks=16, disk=folder if tier == "disk" else None, disk_blocks=24, host_blocks=24 * (tier == "host")
    )
    leave(driver, 1, STRANGER)
    driver.let_files_settle()
    for seed in range(2, 20):
        leave(driver, seed)
        driver.let_files_settle()
    assert found(driver, 1, STRANGER) == 192


def test_a_host_copy_of_what_a_cache_pins_stays(drive: Drive) -> None:
    driver = drive(blocks=24, host_blocks=20)
    for number in range(2):
        driver.build(f"cache {number}", random_tokens(300, seed=number))
    driver.let_files_settle()
    for seed in range(100, 115):
        leave(driver, seed)
        driver.let_files_settle()
    assert driver.call(lambda: driver.engine._room.budget.fixed_block_count) == 0
    assert [check(driver, f"cache {number}") for number in range(2)] == [7, 7]


def test_what_is_too_old_goes_also_while_the_engine_is_busy(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_LONGEST_AUTOMATIC_SECONDS", 0.05)
    driver = drive(blocks=64)
    leave(driver, 1)
    time.sleep(0.1)
    driver.engine._next_ageing = 0.0
    busy = driver.ask([1, 2, 3], max_output_tokens=60)
    for _ in range(2):
        driver.used_blocks()  # a turn of the loop has passed
    assert found(driver, 1, NAMESPACE) == 0
    assert busy.outcome == ANSWERED


def test_what_could_not_be_written_is_written_later_without_a_word_from_anybody(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(disk=folder)
    with monkeypatch.context() as broken:
        broken.setattr(DiskStore, "write", lambda *_: (_ for _ in ()).throw(TierUnavailable("broken")))
        driver.build("cache", random_tokens(300, seed=1))
        driver.let_files_settle()
    assert not files(folder)
    driver.engine._next_ageing = 0.0
    deadline = time.monotonic() + 60
    while len(files(folder)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_was_neither_stored_nor_removed_is_removed_later(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be written to for a while, in the middle of a file: that holds the tokens of a cache, which ends."""
    driver = drive(disk=folder)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as broken:
        for call in ("rename", "unlink"):
            broken.setattr(os, call, fail)
        driver.build("cache", random_tokens(300, seed=1))
        driver.let_files_settle()
        assert list(folder.glob("*.staging"))
    driver.drop("cache")
    driver.call(driver.engine._residence.retry)
    driver.let_files_settle()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("has_disk", [True, False])
def test_what_cannot_be_written_is_not_kept_in_mind_for_ever(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_disk: bool
) -> None:
    """Neither once for each minute, nor when its cache has ended: it has the cache's tokens."""
    driver = drive(disk=folder if has_disk else None)
    monkeypatch.setattr(DiskStore, "write", lambda *_: (_ for _ in ()).throw(TierUnavailable("broken")))
    for number in range(3):
        driver.build(f"cache {number}", random_tokens(100, seed=number))

    def let_a_minute_pass() -> int:
        def age() -> int:
            driver.engine._next_ageing = 0.0
            driver.engine._age()
            return len(driver.engine._residence.writes._pinned)

        return driver.call(age)

    assert [let_a_minute_pass() for _ in range(5)] == [3 * has_disk] * 5
    for number in range(3):
        driver.drop(f"cache {number}")
    assert let_a_minute_pass() == 0


def test_a_folder_that_could_not_be_read_at_start_is_used_once_it_can_be(drive: Drive, folder: Path) -> None:
    folder.write_text("in the way")
    driver = drive(disk=folder)
    driver.build("cache", random_tokens(300, seed=1))
    driver.let_files_settle()
    assert check(driver, "cache") == 7
    folder.unlink()
    driver.call(driver.engine._residence.retry)
    driver.give_up_arena()
    assert len(files(folder)) == 2
    assert check(driver, "cache") == 7


def test_a_request_that_cannot_be_given_room_fails_alone(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours outside any step."""
    driver = drive()
    driver.build("cache", random_tokens(100, seed=1))
    bring = Residence.bring

    def break_once(*_: object, **__: object) -> object:
        monkeypatch.setattr(Residence, "bring", bring)
        raise ArithmeticError("as the test would have it")

    with driver.standing_still():
        monkeypatch.setattr(Residence, "bring", break_once)
        answers: list[Answer] = [driver.ask([1, 2], "cache") for _ in range(2)]
    assert answers[0].ending == Ending.FAILED
    assert answers[1].outcome == ANSWERED
    with driver.standing_still():
        monkeypatch.setattr(Residence, "bring", break_once)
        build = driver.start_build("other", random_tokens(300, seed=2))
        answer = driver.ask([1, 2], "cache")
    assert (build.ending, answer.outcome) == (Ending.FAILED, ANSWERED)
