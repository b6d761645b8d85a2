"""One KV file, of which some parts lie in host memory too: what one read takes adjoins, and every part comes from where it is had."""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Driver
from tests.workers.engine.test_tiers import ANSWERED, BUILT, check
from tests.workers.engine.tiny import random_tokens
from workers.engine.kv_tier import KvTier
from workers.engine.node import Node
from workers.engine.sequence import Ending
from workers.engine.stored import Transfer
from workers.engine.tiers.host_store import HostStore

TOKENS = random_tokens(330, seed=1)
CACHES = {"first": TOKENS[:128], "second": TOKENS[:192], "cache": TOKENS}
PARTS = [128, 64, 128]  # tokens of each, and 10 in the cache's piece
IN_HOST = [each for count in range(4) for each in combinations(range(3), count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def parts_of_one_file(drive: Drive, folder: Path, in_host: Sequence[int]) -> tuple[Driver, list[Node]]:
    """Nothing is in the arena; parts of these numbers are in host memory and on disk, the others on disk alone."""
    driver = drive(disk=folder, host_blocks=20)
    driver.build("cache", TOKENS)
    driver.let_files_settle()
    for cache_id in ("second", "first"):  # what is written is divided
        driver.build(cache_id, CACHES[cache_id])
    nodes = driver.engine._scheduler._pins["cache"].node.path()
    assert [len(node.token_ids) for node in nodes] == PARTS
    assert len({node.file for node in nodes}) == 1
    for number in in_host:
        driver.let_files_settle()
        assert driver.call(partial(driver.engine._residence.writes._write_to_host, nodes[number]))
    driver.give_up_arena()
    assert driver.used_blocks() == 0
    assert [number for number, node in enumerate(nodes) if node.host is not None] == list(in_host)
    return driver, nodes


@pytest.mark.parametrize("before", [None, "first", "second"])
@pytest.mark.parametrize("in_host", IN_HOST)
def test_parts_that_do_not_adjoin_are_read_one_by_one(
    drive: Drive, folder: Path, in_host: tuple[int, ...], before: str | None
) -> None:
    """Whether the beginning of the path is in the arena already, or not."""
    driver, _ = parts_of_one_file(drive, folder, in_host)
    if before is not None:
        assert check(driver, before) == 7
    assert check(driver, "cache") == 7
    from_host = sum(PARTS[number] for number in in_host)
    promoted = driver.engine._residence.counts.promoted
    assert (promoted[KvTier.HOST], promoted[KvTier.DISK]) == (from_host, len(TOKENS) - from_host)
    assert [check(driver, cache_id) for cache_id in CACHES] == [7, 7, 7]


@pytest.mark.parametrize("in_host", IN_HOST[:-1])
def test_a_file_that_cannot_be_read_takes_with_it_what_stands_upon_its_parts(
    drive: Drive, folder: Path, in_host: tuple[int, ...]
) -> None:
    driver, nodes = parts_of_one_file(drive, folder, in_host)
    copy = nodes[0].file
    assert copy is not None
    content = bytearray(copy.file.path.read_bytes())
    content[len(content) // 2] ^= 1
    copy.file.path.write_bytes(content)
    assert driver.ask([1, 2], "cache").outcome == (Ending.PREFIX_MISSING, None)
    for cache_id in ("cache", "second", "first"):
        asked = driver.ask([1, 2], cache_id)
        if asked.outcome != ANSWERED:
            assert asked.outcome == (Ending.PREFIX_MISSING, None)
            assert driver.start_build(cache_id, CACHES[cache_id], is_rebuild=True).outcome == BUILT
        assert check(driver, cache_id) == 7
    driver.give_up_arena()
    assert [check(driver, cache_id) for cache_id in CACHES] == [7, 7, 7]


@pytest.mark.parametrize("in_host", IN_HOST[1:])
def test_what_host_memory_cannot_give_is_read_from_the_file(
    drive: Drive, folder: Path, monkeypatch: pytest.MonkeyPatch, in_host: tuple[int, ...]
) -> None:
    """Its place in the arena stays, for what comes behind it may be there already, and would stand upon nothing."""
    driver, _ = parts_of_one_file(drive, folder, in_host)
    residence = driver.engine._residence
    end_load, errors = residence._end_load, 0

    def fail(*_: Any) -> None:
        raise RuntimeError("as the test would have it")

    def look(transfer: Transfer, source: KvTier, error: BaseException | None) -> None:
        nonlocal errors
        end_load(transfer, source, error)
        errors += error is not None
        driver.engine._tree.check_integrity()

    monkeypatch.setattr(HostStore, "read_into", fail)
    monkeypatch.setattr(residence, "_end_load", look)
    assert [check(driver, cache_id) for cache_id in ("cache", "second", "first")] == [7, 7, 7]
    assert errors == len(in_host)
    assert residence.counts.lost == 0
