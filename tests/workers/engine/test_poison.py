"""Memory that is not a request's own never reaches its answer, whatever lies there."""

import math

import pytest
import torch

from core.errors import Internal
from core.sampling import Sampling
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import GREEDY, NAMESPACE, Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.sequence import Ending
from workers.engine.step import Step


def poison_arena(driver: Driver) -> None:
    """Before each step: NaN in all of the arena but the tokens that were written to living segments."""
    arena = driver.engine._arena

    def poison(_: Step) -> None:
        is_waste = torch.ones(arena.pool.block_count * BLOCK_TOKENS, dtype=torch.bool)
        for segment in driver.engine._segments.alive:
            for start, stop in segment.filled():
                is_waste[start:stop] = False
        arena.slabs[:, :, :, is_waste] = math.nan

    driver.model.before.append(poison)


def poison_tails(driver: Driver) -> None:
    """Before each step: large values behind the end of each tail in use, NaN in the free seats below the highest.

    A masked position must be finite (no mask hides a NaN), which is why seats are wiped; more is not asked of it.
    """
    tails, scheduler = driver.engine._tails, driver.engine._scheduler

    def poison(_: Step) -> None:
        for sequence in scheduler._running:
            tails.slabs[:, :, sequence.seat, :, sequence.tail_length :] = 1e6
        seats = {sequence.seat for sequence in scheduler._running}
        for seat in set(range(max((s for s in seats if s is not None), default=0))) - seats:
            tails.slabs[:, :, seat] = math.nan

    driver.model.before.append(poison)


@pytest.mark.trap("T9")
@pytest.mark.trap("T30")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_poison_in_all_memory_that_nobody_holds(drive: Drive, family: str) -> None:
    driver = drive(family, blocks=40, tail_tokens=32)
    poison_arena(driver)
    for length in (65, 130):
        driver.build(f"cache {length}", random_tokens(length, seed=length))
    with driver.standing_still():
        answers = [
            driver.ask(random_tokens(n, seed=n), cache_id, max_output_tokens=output_tokens)
            for n, cache_id, output_tokens in (
                (5, "cache 65", 60),
                (16, "cache 130", 5),
                (200, "cache 130", 40),
                (70, None, 33),
                (1, None, 3),
            )
        ]
        driver.at_step(8, lambda: driver.engine.drop("cache 130"))
    later = driver.ask(random_tokens(100, seed=9), "cache 65", max_output_tokens=40)
    for answer in (*answers, later):
        assert answer.ending == Ending.MAX_TOKENS
        assert_like_oracle(driver.oracle, answer)


@pytest.mark.trap("T9")
def test_poison_behind_the_end_of_each_tail_and_in_seats_that_are_free(drive: Drive) -> None:
    driver = drive(tail_tokens=32)
    poison_tails(driver)
    driver.build("cache", random_tokens(70, seed=1))
    with driver.standing_still():
        answers = [
            driver.ask(random_tokens(n, seed=n), "cache", max_output_tokens=output_tokens)
            for n, output_tokens in ((3, 2), (16, 40), (5, 4), (2, 70), (200, 5), (9, 20))
        ]
    for answer in answers:
        assert answer.ending == Ending.MAX_TOKENS
        assert_like_oracle(driver.oracle, answer)
    driver.engine.call(lambda _: driver.engine._tails.slabs.zero_()).result()  # the poison was ours


@pytest.mark.trap("T30")
def test_poison_in_all_that_is_evicted_under_those_who_read(drive: Drive) -> None:
    """Two read all of a path and a part of it, while what others leave behind is evicted around them."""
    driver = drive(blocks=20)
    poison_arena(driver)
    text = random_tokens(300, seed=1)
    before = driver.ask(text, namespace=NAMESPACE, max_output_tokens=1)
    assert before.ending == Ending.MAX_TOKENS
    others: list[Answer] = []
    evicted = 0

    def press(_: int) -> bool:
        nonlocal evicted
        evicted = driver.engine._tree.evicted_block_count
        if len(others) < 40:
            others.append(driver.ask(random_tokens(130, seed=100 + len(others)), namespace=NAMESPACE))
        return False

    with driver.standing_still():
        readers = [
            driver.ask([*text[:length], 5], namespace=NAMESPACE, max_output_tokens=60, on_token=press)
            for length in (300, 140)
        ]
    for answer in (*readers, *others):
        assert answer.ending == Ending.MAX_TOKENS
        assert_like_oracle(driver.oracle, answer)
    assert [reader.reused for reader in readers] == [[256], [128]]
    assert evicted > 10


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0.95, 64, 1)])
def test_numbers_that_left_their_range_end_their_own_request_and_reach_no_other(
    drive: Drive, sampling: Sampling
) -> None:
    """Neither its batch mates nor the next request in its seat; float16 can do it."""
    driver = drive(max_running_requests=2)
    tails = driver.engine._tails
    with driver.standing_still():
        sick = driver.ask(random_tokens(20, seed=1), max_output_tokens=30, sampling=sampling)
        mate = driver.ask(random_tokens(20, seed=2), max_output_tokens=60)
        later = driver.ask(random_tokens(3, seed=3), max_output_tokens=20)
        driver.at_step(4, lambda: tails.slabs[:, :, 0, :, :15].fill_(math.nan))
    assert sick.ending == Ending.FAILED
    assert isinstance(sick.error, Internal)
    assert "float32" in sick.error.message
    assert len(sick.tokens) == 4
    for answer in (mate, later):
        assert answer.ending == Ending.MAX_TOKENS
        assert_like_oracle(driver.oracle, answer)
