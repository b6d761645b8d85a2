"""After a restart caches claim the KV that they have left; what has to be computed anew is computed one at a time, and costs no other."""

from pathlib import Path

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Driver
from tests.workers.engine.test_tiers import BUILT, check, computed, files, restart
from tests.workers.engine.tiny import random_tokens
from workers.engine import engine as engine_module

SLOW = 900  # tokens: computed in several steps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def restart_without_the_first(drive: Drive, folder: Path, caches: dict[str, list[int]]) -> Driver:
    """The files of the cache that is asked for first are gone."""
    driver = drive(disk=folder)
    for cache_id, tokens in caches.items():
        driver.build(cache_id, tokens)
        driver.let_files_settle()
    for path in sorted(files(folder), key=lambda path: path.stat().st_mtime_ns)[:2]:
        path.unlink()
    driver.cache_tokens.clear()
    driver.engine.stop()
    return drive(disk=folder)


def test_a_rebuild_that_takes_long_costs_no_other_cache_what_it_left(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_CLAIMING_SECONDS", 0.0)
    caches = {"slow": random_tokens(SLOW, seed=1), "found": random_tokens(300, seed=2)}
    driver = restart_without_the_first(drive, folder, caches)
    with driver.standing_still():
        builds = [
            driver.start_build(cache_id, tokens, is_rebuild=True, is_urgent=False)
            for cache_id, tokens in caches.items()
        ]
        driver.engine.forget_unclaimed()
    assert [build.outcome for build in builds] == [BUILT, BUILT]
    assert computed(driver) == SLOW


def test_what_nobody_waits_for_is_given_room_one_at_a_time(drive: Drive) -> None:
    """Also when the first of them is done and several could follow."""
    driver = drive()
    placed: list[int] = []

    def count(_: object) -> None:
        placed.append(sum(build.has_room for build in driver.engine._scheduler._builds.values()))

    driver.model.before.append(count)
    with driver.standing_still():
        builds = [
            driver.start_build(
                f"cache {seed}", random_tokens(300, seed=seed), is_rebuild=True, is_urgent=False
            )
            for seed in range(4)
        ]
    assert [build.outcome for build in builds] == [BUILT] * 4
    assert max(placed) == 1


def test_a_lost_cache_is_built_again_in_an_arena_of_which_it_takes_more_than_the_share(
    drive: Drive, folder: Path
) -> None:
    """It is promised; the arena may be smaller than the one that it was made for."""
    driver = drive(disk=folder, blocks=24)
    assert driver.start_build("cache", random_tokens(1000, seed=1), is_rebuild=True).outcome == BUILT
    driver.give_up_arena()
    assert check(driver, "cache") == 7


def test_a_start_that_comes_to_nothing_leaves_the_files_to_the_next(drive: Drive, folder: Path) -> None:
    """It ends before the caches have asked for what is theirs."""
    tokens = random_tokens(300, seed=1)
    driver = drive(disk=folder)
    driver.build("cache", tokens)
    driver.let_files_settle()
    driver.cache_tokens.clear()
    driver.engine.stop()
    drive(disk=folder).engine.stop()
    assert len(files(folder)) == 2
    again = restart(drive, drive(disk=folder), {"cache": tokens}, folder)
    assert check(again, "cache") == 7
