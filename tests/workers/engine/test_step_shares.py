"""What builds and rebuilds take of the steps of those who are answered meanwhile."""

import time
from itertools import pairwise

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending
from workers.engine.step import Step


def build_tokens(step: Step) -> int:
    """Tokens of caches that it computes."""
    return sum(len(row.token_ids) for row in step.rows if row.target is not None and row.seat is None)


@pytest.mark.parametrize("is_urgent", [False, True])
def test_of_two_steps_one_at_most_carries_a_rebuild_that_nobody_waits_for(
    drive: Drive, *, is_urgent: bool
) -> None:
    driver = drive()  # ten chunks of 100
    carried: list[bool] = []
    rebuilds: list[Answer] = []

    def begin(_: int) -> bool:
        if not rebuilds:
            driver.model.before.append(lambda step: carried.append(build_tokens(step) > 0))
            build = driver.start_build(
                "cache", random_tokens(1000, seed=1), is_rebuild=True, is_urgent=is_urgent
            )
            rebuilds.append(build)
        return rebuilds[0].ended.is_set()

    running = driver.ask([1, 2], max_output_tokens=120, on_token=begin)
    assert running.ending is Ending.STOP  # the rebuild was through before
    assert sum(carried) == 10
    if is_urgent:
        assert carried[:10] == [True] * 10
    else:
        assert carried[:19] == [True, False] * 9 + [True]
        assert not any(one and next_one for one, next_one in pairwise(carried))


def test_chunks_beside_answers_are_as_large_as_their_time_allows(drive: Drive) -> None:
    """Each step takes 20 ms and 2 ms for each token of prefill, so that 20 of them, or the fewest there are, fit twice the quiet time."""
    driver = drive(prefill_chunk_tokens=200, prefill_stretch=2.0)
    chunks: list[tuple[int, bool]] = []
    builds: list[Answer] = []

    def take_time(step: Step) -> None:
        time.sleep(0.02 + 0.002 * (step.token_ids.numel() - step.decode_count))
        if build_tokens(step):
            chunks.append((build_tokens(step), step.decode_count > 0))

    def begin(_: int) -> bool:
        if driver.engine.counters.decode_tokens >= 5 and not builds:  # what a step takes alone is known
            builds.append(driver.start_build("beside", random_tokens(400, seed=2)))
        return bool(builds) and builds[0].ended.is_set()

    driver.model.before.append(take_time)
    driver.build("alone", random_tokens(400, seed=1))
    assert chunks == [(200, False)] * 2
    chunks.clear()
    running = driver.ask([1, 2], max_output_tokens=120, on_token=begin)
    assert running.ending is Ending.STOP
    assert sum(count for count, _ in chunks) == 400
    assert all(is_beside and count < 100 for count, is_beside in chunks)
