"""Float32 parity, sixteen at once, wherever KV lies and whatever has become of it: each answer is the oracle's."""

import random
from pathlib import Path

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Answer, Driver, assert_like_oracle
from tests.workers.engine.test_tiers import ANSWERED, BUILT, SCATTERED, files, restart
from tests.workers.engine.tiny import FAMILIES, random_tokens
from workers.engine.compaction import compact_one
from workers.engine.pace import Pace
from workers.engine.sequence import Ending

STEM = random_tokens(900, seed=1)
SIZES = {"blocks": 60, "disk_blocks": 400, "host_blocks": 25, "max_running_requests": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def any_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step may carry beside answers changes from step to step."""
    dice = random.Random(5)
    monkeypatch.setattr(
        Pace,
        "chunk_tokens",
        lambda pace, decoding: dice.randint(1, pace.largest) if decoding else pace.largest,
    )


@pytest.mark.usefixtures("any_pace")
@pytest.mark.parametrize("family", FAMILIES)
def test_anything_at_all_in_every_tier(drive: Drive, folder: Path, family: str) -> None:
    """Caches are made, deleted, demoted and promoted; then they are built again, found after a restart, and moved together."""
    driver = drive(family, disk=folder, **SIZES)
    dice = random.Random(4)
    texts = {f"cache {n}": STEM[: dice.randrange(64, 700)] + random_tokens(90, seed=n) for n in range(8)}
    live: dict[str, list[int]] = {}
    for turn in range(4):
        for name in texts.keys() - live.keys():
            driver.build(name, texts[name])
            live[name] = texts[name]
        assert ask_sixteen(driver, dice, live) == 0
        gone = dice.choice(sorted(live))
        driver.drop(gone)
        del live[gone]
        if turn % 2:
            driver.give_up_arena()
    assert driver.engine._residence.counts.promoted

    driver.give_up_arena()
    for path in files(folder):
        damage(path)
    assert ask_sixteen(driver, dice, live) > 0

    driver.give_up_arena()
    driver = restart(drive, driver, live, folder, family=family, **SIZES)
    before = driver.engine.counters.prefill_tokens
    assert ask_sixteen(driver, dice, live) == 0
    assert driver.engine.counters.prefill_tokens - before < 16 * 400  # what was asked, and no cache

    moved = 0
    for _ in range(20):  # what comes back lies where there is room
        moved += move_together(driver, dice)
        assert ask_sixteen(driver, dice, live) == 0
        if moved > 3:
            break
    assert moved > 3


def ask_sixteen(driver: Driver, dice: random.Random, live: dict[str, list[int]]) -> int:
    """At once, of caches and without, some with the same beginning. What is missing is built again, as the runtime does; tells how often."""
    with driver.standing_still():
        asked = [
            (cache_id, *ask(driver, dice, cache_id)) for cache_id in dice.choices([None, *sorted(live)], k=16)
        ]
    rebuilt = 0
    for cache_id, prompt, first in asked:
        answer = first
        while cache_id is not None and answer.ending is Ending.PREFIX_MISSING:
            rebuilt += 1
            assert rebuilt <= 16, "it is lost again and again"
            assert driver.start_build(cache_id, live[cache_id], is_rebuild=True).outcome == BUILT
            answer = driver.ask(prompt, cache_id, namespace=NAMESPACE, max_output_tokens=6)
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer, SCATTERED)
    return rebuilt


def ask(driver: Driver, dice: random.Random, cache_id: str | None) -> tuple[list[int], Answer]:
    prompt = STEM[: dice.randrange(1, 400)] if cache_id is None else random_tokens(9, seed=dice.randrange(99))
    return prompt, driver.ask(prompt, cache_id, namespace=NAMESPACE, max_output_tokens=6)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def move_together(driver: Driver, dice: random.Random) -> int:
    """A few paths that lie in more than one run, as far as there is room; tells how many. Not all: of two with the same beginning only
    one can have it beside its end."""
    tree, segments = driver.engine._tree, driver.engine._segments
    driver.let_files_settle()
    driver.call(lambda: tree.evict(dice.randrange(10, 50)))
    moved = sum(driver.call(lambda: compact_one(tree, segments, 1)) for _ in range(3))
    driver.call(tree.check_integrity)
    return moved
