"""KV below the arena that cannot be had, or is not: nobody waits for it, nothing stands in its way, and what is left of it ends with its cache."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Driver
from tests.workers.engine.test_tiers import ANSWERED, BUILT, Gate, check, files
from tests.workers.engine.tiny import random_tokens
from workers.engine.kv_tier import KvTier
from workers.engine.sequence import Ending
from workers.engine.stored import Transfer
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import FileRejected, Rejection
from workers.engine.tiers.kv_file import KvFile

MISSING = (Ending.PREFIX_MISSING, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def reused(driver: Driver, prompt: list[int]) -> int:
    answer = driver.ask(prompt, namespace=NAMESPACE, max_output_tokens=1)
    assert answer.outcome == ANSWERED
    return answer.reused[0]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_the_end(driver: Driver, folder: Path, tokens: list[int]) -> None:
    """Of a cache of two files only the first can be read."""
    driver.build("first", tokens[:128])
    driver.let_files_settle()
    driver.build("cache", tokens)
    driver.drop("first")
    driver.give_up_arena()
    damage(max(files(folder), key=lambda path: path.stat().st_mtime_ns))
    assert driver.ask([1, 2], "cache").outcome == MISSING


def assert_nothing_is_left(driver: Driver, folder: Path, tokens: list[int]) -> None:
    driver.let_files_settle()
    assert not files(folder)
    assert reused(driver, [*tokens, 1]) == 0


@pytest.mark.parametrize("length", [192, 200])
def test_what_is_left_of_a_lost_cache_ends_with_it(drive: Drive, folder: Path, length: int) -> None:
    driver, tokens = drive(disk=folder), random_tokens(length, seed=1)
    lose_the_end(driver, folder, tokens)
    assert files(folder)
    driver.drop("cache")
    assert_nothing_is_left(driver, folder, tokens)


def test_what_is_left_of_a_cache_whose_rebuild_is_cancelled_ends_with_it(drive: Drive, folder: Path) -> None:
    driver, tokens = drive(disk=folder), random_tokens(200, seed=1)
    lose_the_end(driver, folder, tokens)
    with driver.standing_still():
        build = driver.start_build("cache", tokens, is_rebuild=True)
        driver.engine.cancel("cache")
    assert build.ending == Ending.CANCELLED
    driver.drop("cache")
    assert_nothing_is_left(driver, folder, tokens)


def test_what_is_left_of_a_cache_that_ended_during_its_rebuild_ends_with_that(
    drive: Drive, folder: Path
) -> None:
    """It goes on for who asked before, and fails."""
    driver, tokens = drive(disk=folder), random_tokens(384, seed=1)
    lose_the_end(driver, folder, tokens)

    def fail() -> None:
        raise ArithmeticError("as the test would have it")

    with driver.standing_still():
        build, answer = driver.start_build("cache", tokens, is_rebuild=True), driver.ask([1, 2], "cache")
        driver.at_step(0, lambda: driver.drop("cache"))
        driver.at_step(1, fail)
    assert (build.ending, answer.ending) == (Ending.FAILED, Ending.FAILED)
    assert_nothing_is_left(driver, folder, tokens)


def test_a_lost_cache_that_was_built_again_is_one_like_any_other(drive: Drive, folder: Path) -> None:
    driver, tokens = drive(disk=folder), random_tokens(200, seed=1)
    lose_the_end(driver, folder, tokens)
    assert driver.start_build("cache", tokens, is_rebuild=True).outcome == BUILT
    driver.give_up_arena()
    assert check(driver, "cache") == 7
    driver.build("other", tokens[:128])
    driver.drop("cache")
    driver.give_up_arena()
    assert check(driver, "other") == 7


def test_a_request_for_a_deleted_cache_ends_when_that_is_lost(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(disk=folder)
    driver.build("cache", random_tokens(200, seed=1))
    driver.give_up_arena()
    for path in files(folder):
        damage(path)
    gate = Gate(monkeypatch, "read_into")
    answers = [driver.ask([1, 2, number], "cache") for number in range(3)]
    assert gate.reached.wait(60)
    driver.drop("cache")
    gate.opened.set()
    assert [answer.outcome for answer in answers] == [MISSING] * 3
    driver.give_up_arena()
    assert driver.used_blocks() == 0
    assert not files(folder)


def test_what_is_lost_together_is_kept_again_when_it_was_computed(drive: Drive, folder: Path) -> None:
    """A node that was divided after it was written: both parts are read from one file, and neither hinders what comes instead."""
    driver, tokens = drive(disk=folder), random_tokens(320, seed=1)
    driver.build("cache", tokens)
    driver.let_files_settle()
    (path,) = files(folder)
    other = [*tokens[:128], *random_tokens(64, seed=2)]
    driver.build("other", other)
    driver.give_up_arena()
    damage(path)
    assert driver.ask([1, 2], "cache").outcome == MISSING
    assert driver.start_build("cache", tokens, is_rebuild=True).outcome == BUILT
    driver.give_up_arena()
    assert driver.used_blocks() == 0
    assert check(driver, "cache") == 7
    assert driver.ask([1, 2], "other").outcome == MISSING
    assert driver.start_build("other", other, is_rebuild=True).outcome == BUILT
    assert check(driver, "other") == 7


def test_kv_that_comes_behind_what_is_lost_does_not_stand_in_the_arena_alone(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two reads fails while the second is under way."""
    driver, tokens = drive(disk=folder), random_tokens(320, seed=1)
    driver.build("first", tokens[:128])
    driver.let_files_settle()
    driver.build("cache", tokens)
    driver.give_up_arena()
    read, end_load = DiskStore.read_into, driver.engine._residence._end_load
    looked: list[BaseException | None] = []

    def fail_first(store: DiskStore, file: KvFile, *args: Any, first_token: int = 0) -> None:
        if file.manifest.position == 0:
            raise FileRejected(Rejection.CORRUPT, "as the test would have it")
        read(store, file, *args, first_token=first_token)

    def look(transfer: Transfer, source: KvTier, error: BaseException | None) -> None:
        end_load(transfer, source, error)
        driver.engine._tree.check_integrity()
        looked.append(error)

    monkeypatch.setattr(DiskStore, "read_into", fail_first)
    monkeypatch.setattr(driver.engine._residence, "_end_load", look)
    assert driver.ask([1, 2], "cache").outcome == MISSING
    driver.let_files_settle()
    assert [type(each) for each in looked] == [FileRejected, type(None)]


def test_an_answer_is_not_left_behind_kv_that_is_below_the_arena(drive: Drive, folder: Path) -> None:
    """It would stand in the arena upon nothing."""
    driver, prompt = drive(disk=folder), random_tokens(100, seed=1)
    first = driver.ask(prompt, max_output_tokens=100)
    assert first.outcome == ANSWERED
    driver.build("cache", [*prompt, *first.tokens[:28]])
    driver.give_up_arena()
    again = driver.ask(prompt, namespace=NAMESPACE, max_output_tokens=100)
    assert (again.outcome, again.reused) == (ANSWERED, [64])
    driver.call(driver.engine._tree.check_integrity)
    assert driver.used_blocks() == 1
    assert check(driver, "cache") == 7
