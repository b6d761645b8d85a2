"""What the engine tells of its tiers is what they did, to the token."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Driver
from tests.workers.engine.test_metrics import BLOCK_BYTES, Told, ask
from tests.workers.engine.test_tiers import BUILT, files
from tests.workers.engine.tiny import random_tokens
from workers.engine.residence import Residence
from workers.engine.sequence import Ending
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.host_store import HostStore

CACHE = random_tokens(200, seed=1)  # three blocks, and a piece of 8 tokens
MISSING = (Ending.PREFIX_MISSING, None)
TIERS = ["disk", "host"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def below(tier: str, folder: Path, blocks: int) -> dict[str, Any]:
    """What makes an engine have that tier, with room for so many blocks."""
    return {"host_blocks": blocks} if tier == "host" else {"disk": folder, "disk_blocks": blocks}


def size(told: Told, tier: str, kind: str) -> float:
    return told.value("headstart_kv_bytes", tier=tier, kind=kind)


def tokens(told: Told, what: str, **labels: str) -> float:
    return told.value(f"headstart_kv_{what}_tokens_total", **labels)


def rejected(told: Told) -> dict[str, float]:
    reasons = ("truncated", "corrupt", "stale", "foreign", "unreadable")
    found = {each: told.value("headstart_kv_files_rejected_total", reason=each) for each in reasons}
    return {reason: count for reason, count in found.items() if count}


def choices(told: Told) -> tuple[float, float]:
    load, recompute = (
        told.value("headstart_kv_choices_total", choice=choice) for choice in ("load", "recompute")
    )
    return load, recompute


@pytest.mark.parametrize("tier", TIERS)
def test_what_a_cache_does_on_its_way_down_and_up(drive: Drive, folder: Path, tier: str) -> None:
    driver = drive(**below(tier, folder, 100))
    told = Told(driver)
    driver.build("cache", CACHE)
    driver.let_files_settle()
    used = sum(path.stat().st_size for path in files(folder)) if tier == "disk" else 4 * BLOCK_BYTES
    assert size(told, tier, "used") == used > 0
    limit = driver.engine._residence.bytes_below()
    assert [size(told, tier, "free")] == [most - used for _, most in limit.values()]
    assert tokens(told, "demoted") == 0
    driver.give_up_arena()
    assert tokens(told, "demoted") == 200
    assert tokens(told, "evicted", tier="device") == 0
    assert (told.bytes("pinned"), size(told, tier, "used")) == (0, used)
    with driver.standing_still():  # the second finds it on its way
        answers = [driver.ask([1, 2, n], "cache", max_output_tokens=1) for n in range(2)]
    assert [answer.ending for answer in answers] == [Ending.MAX_TOKENS] * 2
    ask(driver, [5, 6], "cache")
    assert tokens(told, "promoted", tier=tier) == 200
    assert choices(told) == (1, 0)
    assert told.first_tokens() == {("explicit", tier): 2, ("explicit", "device"): 1}
    assert told.prompts() == (2 * 3 + 2, 600, 0, 600)
    assert tokens(told, "lost") == 0


@pytest.mark.parametrize("tier", TIERS)
def test_automatic_kv_comes_from_where_it_lay(drive: Drive, folder: Path, tier: str) -> None:
    driver = drive(blocks=12, **below(tier, folder, 100))
    told = Told(driver)
    prompt = random_tokens(64 * 10 + 1, seed=1)  # leaves less than a quarter of the arena
    ask(driver, prompt)
    let_copies_settle(driver)
    driver.give_up_arena()
    assert tokens(told, "demoted") == 640
    with driver.standing_still():
        answers = [driver.ask(prompt, namespace=NAMESPACE, max_output_tokens=1) for _ in range(2)]
    assert [answer.ending for answer in answers] == [Ending.MAX_TOKENS] * 2
    ask(driver, random_tokens(30, seed=2))
    assert told.first_tokens() == {("cold", "none"): 2, ("implicit", tier): 2}
    assert tokens(told, "promoted", tier=tier) == 640
    assert choices(told) == (1, 0)


def test_a_conversation_that_comes_from_disk_behind_a_cache_that_does_not(drive: Drive, folder: Path) -> None:
    driver = drive(blocks=16, disk=folder)
    driver.build("cache", CACHE[:192])
    told = Told(driver)
    prompt = random_tokens(64 * 10 + 1, seed=2)
    ask(driver, prompt, "cache")
    let_copies_settle(driver)
    driver.call(lambda: driver.engine._tree.evict(10))
    ask(driver, prompt, "cache")
    assert tokens(told, "demoted") == tokens(told, "promoted", tier="disk") == 640
    assert told.first_tokens() == {("explicit", "device"): 1, ("explicit", "disk"): 1}


def test_what_is_computed_again_because_that_is_quicker(
    drive: Drive, folder: Path, loads: pytest.MonkeyPatch
) -> None:
    loads.undo()
    driver = drive(disk=folder)
    driver.build("cache", CACHE)
    driver.give_up_arena()
    told = Told(driver)
    disk = driver.engine._residence._disk
    assert disk is not None
    disk.read_rate.observe(1, 1_000)
    assert driver.ask([1, 2, 3], "cache").outcome == MISSING
    assert choices(told) == (0, 1)
    assert tokens(told, "lost") == 0  # it could have been had
    assert rejected(told) == {}


def test_a_choice_is_told_once_however_long_the_request_waits(
    drive: Drive, folder: Path, loads: pytest.MonkeyPatch
) -> None:
    """It looks again in each step, until others have given room back."""
    driver = drive(disk=folder, blocks=20)
    told = Told(driver)
    driver.build("cache", CACHE[:128])
    driver.give_up_arena()
    loads.setattr(Residence, "is_worth_loading", lambda *_: False)
    with driver.standing_still():
        before = driver.ask(random_tokens(900, seed=2), max_output_tokens=60)
        waiting = driver.ask(
            [*CACHE[:128], *random_tokens(500, seed=3)], namespace=NAMESPACE, max_output_tokens=2
        )
    assert (before.ending, waiting.ending) == (Ending.MAX_TOKENS, Ending.MAX_TOKENS)
    assert choices(told) == (0, 1)


@pytest.mark.parametrize(
    ("damage", "reason"), [("flip", "corrupt"), ("cut", "truncated"), ("gone", "unreadable")]
)
def test_what_is_lost_with_a_file(drive: Drive, folder: Path, damage: str, reason: str) -> None:
    driver = drive(disk=folder)
    driver.build("cache", CACHE)
    driver.give_up_arena()
    told = Told(driver)
    largest = max(files(folder), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    if damage == "gone":
        largest.unlink()
    elif damage == "cut":
        largest.write_bytes(content[:-100])
    else:
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    assert driver.ask([1, 2, 3], "cache").outcome == MISSING
    assert tokens(told, "lost") == 192
    assert rejected(told) == {reason: 1}
    assert driver.start_build("cache", CACHE, is_rebuild=True).outcome == BUILT
    assert told.value("headstart_rebuilds_total", reason="asked") == 1
    assert told.forwarded("rebuild") == 200
    ask(driver, [1, 2], "cache")
    assert tokens(told, "lost") == 192


def test_files_that_are_rejected_at_the_start_are_told(drive: Drive, folder: Path) -> None:
    """Whoever reports only later, as a server does once it has warmed up, tells of them too."""
    driver = drive(disk=folder, fingerprint="one")
    driver.build("cache", CACHE)
    driver.let_files_settle()
    driver.cache_tokens.clear()
    driver.engine.stop()
    assert rejected(Told(drive(disk=folder, fingerprint="other"))) == {"stale": 2}


def test_what_a_full_disk_gives_up(drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive(blocks=30, disk=folder, disk_blocks=20)  # five prompts, and three files
    told = Told(driver)
    written = count_writes(monkeypatch)
    for number in range(12):
        ask(driver, random_tokens(64 * 6 + 1, seed=number))
        let_copies_settle(driver)
    given_up = tokens(told, "evicted", tier="disk")
    assert given_up == 384 * (len(written) - len(files(folder))) > 0


def test_a_full_disk_is_not_written_to_for_ever(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller than what the arena holds: the least used would take turns there, each in the other's place."""
    driver = drive(blocks=32, disk=folder, disk_blocks=12)
    told = Told(driver)
    written = count_writes(monkeypatch)
    for number in range(5):
        ask(driver, random_tokens(64 * 6 + 1, seed=number))
    let_copies_settle(driver)
    assert len(written) <= 5
    assert tokens(told, "evicted", tier="disk") <= 3 * 384
    driver.build("cache", CACHE)  # what a cache pins has its place there nevertheless
    driver.give_up_arena()
    assert tokens(told, "demoted") >= 200
    ask(driver, [1, 2], "cache")
    assert told.first_tokens()["explicit", "disk"] == 1


def test_what_host_memory_gives_up(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive(blocks=18, host_blocks=14)  # three prompts, and two of them
    told = Told(driver)
    copied: list[object] = []
    write = HostStore.write
    monkeypatch.setattr(HostStore, "write", lambda *args: copied.append(write(*args)))
    for number in range(8):
        ask(driver, random_tokens(64 * 6 + 1, seed=number))
        let_copies_settle(driver)
    assert size(told, "host", "used") == 2 * 6 * BLOCK_BYTES
    assert tokens(told, "evicted", tier="host") == 384 * (len(copied) - 2) > 0
    assert tokens(told, "evicted", tier="disk") == 0


def let_copies_settle(driver: Driver) -> None:
    """Wait until nothing more comes up to be copied, automatic KV included."""
    residence = driver.engine._residence

    def is_copying() -> bool:
        residence.writes.tend(is_full=False)
        return not residence.is_idle

    deadline = time.monotonic() + 20
    while driver.call(is_copying):
        assert time.monotonic() < deadline, "it is copied for ever"
        driver.let_files_settle()


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The files written from now on."""
    written: list[object] = []
    write = DiskStore.write

    def watched(store: DiskStore, *args: Any) -> Any:
        written.append(write(store, *args))
        return written[-1]

    monkeypatch.setattr(DiskStore, "write", watched)
    return written
