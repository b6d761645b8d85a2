"""KV on disk: written for what caches pin, brought back when it is asked for, never trusted, never missed by a caller."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import AppError
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Driver, assert_like_oracle
from tests.workers.engine.tiny import FAMILIES, random_tokens
from workers.engine.sequence import Ending
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import DiskFull, Rejection, TierUnavailable
from workers.engine.tiers.host_store import HostStore

ANSWERED = (Ending.MAX_TOKENS, None)
SCATTERED = 3e-5  # KV that came back lies where there was room; wrong KV would differ a hundred times as much
BUILT = (Ending.BUILT, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv*"))


def computed(driver: Driver) -> int:
    return driver.engine.counters.prefill_tokens


def check(driver: Driver, cache_id: str, seed: int = 9) -> int:
    """Ask the cache, compare with the oracle; gives how many tokens were computed for it."""
    before = computed(driver)
    answer = driver.ask(random_tokens(7, seed=seed), cache_id, max_output_tokens=3)
    assert answer.outcome == ANSWERED
    assert_like_oracle(driver.oracle, answer, SCATTERED)
    return computed(driver) - before


@pytest.mark.trap("T4")
@pytest.mark.trap("T6")
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_is_written_demoted_and_read_back(
    drive: Drive, folder: Path, family: str, length: int
) -> None:
    """For whole blocks and what is left over."""
    driver = drive(family, disk=folder)
    driver.build("cache", random_tokens(length, seed=1))
    driver.let_files_settle()
    assert len(files(folder)) == (length >= 64) + (length % 64 > 0)
    driver.give_up_arena()
    assert driver.used_blocks() == 0
    assert check(driver, "cache") == 7
    assert driver.used_blocks() == -(-length // 64)
    assert check(driver, "cache") == 7


def test_the_arena_holds_fewer_caches_than_there_are(drive: Drive, folder: Path) -> None:
    """Pins are demoted for one another and for requests, never lost, never refused."""
    driver = drive(blocks=40, disk=folder)
    for number in range(12):
        driver.build(f"cache {number}", random_tokens(500, seed=number))
    dice = random.Random(1)
    for _ in range(30):
        assert check(driver, f"cache {dice.randrange(12)}") == 7
    assert driver.engine._residence.counts.promoted


def test_requests_for_caches_that_do_not_fit_together_all_get_theirs(drive: Drive, folder: Path) -> None:
    driver = drive(blocks=24, disk=folder)
    for number in range(4):
        driver.build(f"cache {number}", random_tokens(700, seed=number))
    driver.give_up_arena()
    with driver.standing_still():
        answers = [driver.ask([1, 2, n], f"cache {n % 4}", max_output_tokens=20) for n in range(12)]
    for answer in answers:
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer, SCATTERED)


def restart(
    drive: Drive, driver: Driver, caches: dict[str, list[int]], folder: Path, **config: Any
) -> Driver:
    """A new engine on the files of one that stops; its caches are asked for, as at every start."""
    driver.let_files_settle()
    driver.cache_tokens.clear()  # it ends without a word to its caches
    driver.engine.stop()
    again = drive(disk=folder, **config)
    for cache_id, tokens in caches.items():
        again.start_build(cache_id, tokens, is_rebuild=True, is_urgent=False)
    again.engine.forget_unclaimed()
    return again


@pytest.mark.trap("T23")
def test_a_restart_finds_its_files(drive: Drive, folder: Path) -> None:
    """Nothing is computed but what is asked."""
    shared = random_tokens(200, seed=1)
    caches = {"one": [*shared, *random_tokens(100, seed=2)], "two": [*shared, *random_tokens(90, seed=3)]}
    driver = drive(disk=folder)
    for cache_id, tokens in caches.items():
        driver.build(cache_id, tokens)
    again = restart(drive, driver, caches, folder)
    assert [check(again, cache_id) for cache_id in caches] == [7, 7]
    assert computed(again) == 14
    third = restart(drive, again, caches, folder)
    assert [check(third, cache_id) for cache_id in caches] == [7, 7]


def test_a_restart_removes_what_no_cache_asks_for(drive: Drive, folder: Path) -> None:
    caches = {"kept": random_tokens(150, seed=1), "deleted": random_tokens(150, seed=2)}
    driver = drive(disk=folder)
    for cache_id, tokens in caches.items():
        driver.build(cache_id, tokens)
    driver.let_files_settle()
    assert len(files(folder)) == 4
    del caches["deleted"]
    again = restart(drive, driver, caches, folder)
    again.let_files_settle()
    assert len(files(folder)) == 2
    assert check(again, "kept") == 7


@pytest.mark.trap("T22")
def test_other_weights_find_nothing(drive: Drive, folder: Path) -> None:
    """KV of a model whose weights have changed is removed, and computed again."""
    caches = {"cache": random_tokens(150, seed=1)}
    driver = drive(disk=folder, fingerprint="one")
    driver.build("cache", caches["cache"])
    again = restart(drive, driver, caches, folder, fingerprint="other")
    assert check(again, "cache") == 157  # its rebuild too
    assert check(again, "cache") == 7
    disk = again.engine._residence._disk
    assert disk is not None
    assert disk.rejections()[Rejection.STALE] == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "all"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_damaged_files_are_computed_again(drive: Drive, folder: Path, which: int, damage: str) -> None:
    """The request is told that its prefix is missing, as after any loss, and is asked for again with a rebuild."""
    shared = random_tokens(128, seed=1)
    tokens = {"one": [*shared, *random_tokens(100, seed=2)], "two": [*shared, *random_tokens(80, seed=3)]}
    driver = drive(disk=folder)
    for cache_id, each in tokens.items():
        driver.build(cache_id, each)
    driver.give_up_arena()
    stored = sorted(files(folder), key=lambda path: path.stat().st_mtime_ns)
    for path in stored if damage == "all" else stored[which : which + 1]:
        content = bytearray(path.read_bytes())
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(content[:-100])
        else:
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    for cache_id, each in tokens.items():
        lost = driver.ask([5, 6], cache_id, max_output_tokens=2)
        if lost.outcome != ANSWERED:
            assert lost.outcome == (Ending.PREFIX_MISSING, None)
            assert driver.start_build(cache_id, each, is_rebuild=True).outcome == BUILT
        assert check(driver, cache_id) == 7
    driver.give_up_arena()
    assert [check(driver, cache_id) for cache_id in tokens] == [7, 7]


def test_a_deleted_cache_takes_its_files_with_it(drive: Drive, folder: Path) -> None:
    shared = random_tokens(128, seed=1)
    one, two = [*shared, *random_tokens(100, seed=2)], [*shared, *random_tokens(80, seed=3)]
    driver = drive(disk=folder)
    driver.build("one", one)
    driver.let_files_settle()
    driver.build("two", two)  # divides what is written
    driver.let_files_settle()
    driver.drop("one")
    driver.let_files_settle()
    kept = b"".join(path.read_bytes() for path in files(folder))
    assert len(files(folder)) == 3  # the shared blocks, written anew, and those of the other
    driver.give_up_arena()
    assert check(driver, "two") == 7
    driver.drop("two")
    driver.let_files_settle()
    assert not files(folder)
    assert kept


@pytest.mark.parametrize("is_demoted", [False, True])
def test_a_cache_that_is_deleted_while_it_is_read_still_answers(
    drive: Drive, folder: Path, *, is_demoted: bool
) -> None:
    driver = drive(disk=folder)
    driver.build("cache", random_tokens(300, seed=1))
    driver.let_files_settle()
    if is_demoted:
        driver.give_up_arena()
    with driver.standing_still():
        answer = driver.ask([1, 2, 3], "cache", max_output_tokens=5)
        driver.drop("cache")
    assert answer.outcome == ANSWERED
    assert_like_oracle(driver.oracle, answer, SCATTERED)
    driver.let_files_settle()
    assert not files(folder)
    assert driver.ask([1, 2, 3], "cache").outcome == (Ending.PREFIX_MISSING, None)


class Gate:
    """Holds a door of a tier shut until the test opens it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, door: str, owner: type = DiskStore) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        original: Callable[..., Any] = getattr(owner, door)

        def wait(*args: Any, **more: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(60)
            return original(*args, **more)

        monkeypatch.setattr(owner, door, wait)


@pytest.mark.trap("T28")
@pytest.mark.parametrize("what", ["cancel", "delete", "both"])
def test_a_load_that_nobody_wants_any_more_gives_its_room_back(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    driver = drive(disk=folder)
    driver.build("cache", random_tokens(300, seed=1))
    driver.give_up_arena()
    gate = Gate(monkeypatch, "read_into")
    answer = driver.ask([1, 2, 3], "cache", request_id="asked")
    assert gate.reached.wait(60)
    if what != "delete":
        driver.engine.cancel("asked")
        assert answer.outcome == (Ending.CANCELLED, None)
    if what != "cancel":
        driver.drop("cache")
    other = driver.ask([4, 5, 6])  # nobody waits for the disk but who reads from it
    assert other.outcome == ANSWERED
    gate.opened.set()
    driver.let_files_settle()
    if what == "delete":
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer, SCATTERED)
        driver.let_files_settle()
    assert bool(files(folder)) == (what == "cancel")
    driver.give_up_arena()
    assert driver.used_blocks() == 0


@pytest.mark.trap("T33")
def test_a_node_that_is_divided_while_it_is_written(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "write")
    driver = drive(disk=folder)
    whole = random_tokens(320, seed=1)
    driver.build("whole", whole)
    assert gate.reached.wait(60)
    driver.build("half", [*whole[:128], *random_tokens(64, seed=2)])
    gate.opened.set()
    driver.give_up_arena()
    assert driver.used_blocks() == 0
    assert len(files(folder)) == 2
    assert [check(driver, name) for name in ("half", "whole")] == [7, 7]


def test_a_cache_that_ends_while_it_is_written_leaves_no_file(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "write")
    driver = drive(disk=folder)
    driver.build("cache", random_tokens(300, seed=1))
    assert gate.reached.wait(60)
    driver.drop("cache")
    gate.opened.set()
    driver.let_files_settle()
    assert not files(folder)
    assert driver.used_blocks() == 0


def fail(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: Any, **__: Any) -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    "error", [TierUnavailable("no such device"), OSError("unheard of"), DiskFull(1, 1, 1)]
)
def test_a_disk_that_cannot_be_written_to_is_gone_without(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    driver = drive(disk=folder, blocks=40)
    with monkeypatch.context() as broken:
        broken.setattr(DiskStore, "write", fail(error))
        driver.build("cache", random_tokens(300, seed=1))
        driver.give_up_arena()
        assert driver.used_blocks() == 5
        assert check(driver, "cache") == 7
    driver.call(driver.engine._residence.retry)
    driver.give_up_arena()
    assert driver.used_blocks() == 0
    assert check(driver, "cache") == 7


def test_a_full_disk_gives_automatic_kv_up_for_what_caches_pin(drive: Drive, folder: Path) -> None:
    driver = drive(blocks=32, disk=folder, disk_blocks=40)
    for number in range(10):
        answer = driver.ask(random_tokens(400, seed=number), namespace=NAMESPACE, max_output_tokens=2)
        assert answer.outcome == ANSWERED
        driver.let_files_settle()
    automatic = len(files(folder))
    assert automatic
    for number in range(3):
        driver.build(f"cache {number}", random_tokens(400, seed=100 + number))
        driver.let_files_settle()
    driver.give_up_arena()
    assert [check(driver, f"cache {number}") for number in range(3)] == [7, 7, 7]


def test_more_than_half_of_the_disk_is_refused_with_the_numbers(drive: Drive, folder: Path) -> None:
    driver = drive(blocks=64, disk=folder, disk_blocks=80)
    built = 0
    error: AppError | None = None
    for number in range(20):
        outcome = driver.start_build(f"cache {number}", random_tokens(320, seed=number)).outcome
        built += outcome == BUILT
        error = error or outcome[1]
    assert built in {7, 8}
    assert error is not None
    assert error.code == "arena_full"
    assert error.metadata["requested"] == "320"
    for number in range(built):
        assert check(driver, f"cache {number}") == 7


def test_automatic_kv_comes_back_from_disk(drive: Drive, folder: Path) -> None:
    driver = drive(blocks=32, disk=folder)
    prompts = [random_tokens(400, seed=number) for number in range(12)]
    for prompt in prompts:
        assert driver.ask(prompt, namespace=NAMESPACE, max_output_tokens=2).outcome == ANSWERED
        driver.let_files_settle()
    reused = []
    for prompt in prompts:
        answer = driver.ask(prompt, namespace=NAMESPACE, max_output_tokens=2)
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer, SCATTERED)
        reused += answer.reused
    assert sum(each == 384 for each in reused) >= 8
    assert driver.engine._residence.counts.promoted


def test_what_is_faster_computed_is_not_read(drive: Drive, folder: Path, loads: pytest.MonkeyPatch) -> None:
    loads.undo()
    driver = drive(disk=folder)
    tokens = random_tokens(300, seed=1)
    driver.build("cache", tokens)
    driver.give_up_arena()
    disk = driver.engine._residence._disk
    assert disk is not None
    disk.read_rate.observe(1, 1_000)
    assert driver.ask([1, 2, 3], "cache").outcome == (Ending.PREFIX_MISSING, None)
    assert driver.engine._residence.counts.recomputes == 1
    assert driver.start_build("cache", tokens, is_rebuild=True).outcome == BUILT
    assert check(driver, "cache") == 7


@pytest.mark.trap("T6")
def test_a_second_arena_takes_what_the_first_has_no_room_for(drive: Drive) -> None:
    """Without a disk: as host memory beside a GPU's."""
    driver = drive(blocks=40, host_blocks=100)
    for number in range(10):
        driver.build(f"cache {number}", random_tokens(300, seed=number))
    for _ in range(2):
        for number in range(10):
            assert check(driver, f"cache {number}") == 7
            driver.let_files_settle()
    assert driver.engine._residence.counts.promoted


def test_a_node_that_is_divided_while_it_is_copied(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write", HostStore)
    driver = drive(blocks=12, host_blocks=100)
    whole = random_tokens(640, seed=1)
    assert driver.ask(whole, namespace=NAMESPACE, max_output_tokens=1).outcome == ANSWERED
    assert gate.reached.wait(60)
    half = driver.ask([*whole[:128], 1, 2], namespace=NAMESPACE, max_output_tokens=1)
    assert half.outcome == ANSWERED
    gate.opened.set()
    driver.give_up_arena()
    again = driver.ask(whole, namespace=NAMESPACE, max_output_tokens=3)
    assert (again.outcome, again.reused) == (ANSWERED, [576])
    assert_like_oracle(driver.oracle, again, SCATTERED)
