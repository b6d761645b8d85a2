"""Questions, prompts of which at most a block is missing: computed together when they come together, and paced when they come without end."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer, Driver
from tests.workers.engine.test_step_shares import build_tokens
from tests.workers.engine.tiny import random_tokens
from workers.engine.pace import Pace
from workers.engine.sequence import Ending
from workers.engine.step import Step

_CHUNK, _PACED = 256, 32


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside answers a step is to carry 32 tokens, whatever it takes."""
    monkeypatch.setattr(Pace, "chunk_tokens", lambda pace, decoding: _PACED if decoding else pace.largest)


def prefill_of(step: Step) -> int:
    return step.token_ids.numel() - step.decode_count


@pytest.mark.usefixtures("paced")
@pytest.mark.parametrize("length", [15, 17, 30, 36])
def test_they_come_together_in_the_order_of_asking(drive: Drive, length: int) -> None:
    driver = drive(prefill_chunk_tokens=_CHUNK)
    chunks: list[int] = []
    asked: list[Answer] = []
    driver.model.before.append(lambda step: chunks.append(prefill_of(step)) if asked else None)

    def begin(_: int) -> bool:
        if not asked:
            asked.extend(
                driver.ask(
                    random_tokens(length, seed=each), max_output_tokens=1, request_id=f"question {each}"
                )
                for each in range(7)
            )
        return all(each.ended.is_set() for each in asked)

    assert driver.ask([1, 2], max_output_tokens=120, on_token=begin).ending is Ending.STOP
    assert [count for count in chunks if count] == [7 * length]
    ended = [event for event in driver.events if event.startswith("question")]
    assert ended == sorted(ended)


def without_end(driver: Driver, length: int, at_once: int, steps: int) -> Callable[[int], bool]:
    """Called with each token of a running answer: as many questions as before are in flight again, for so many steps."""
    asked: list[Answer] = []
    left = [steps]

    def ask(_: int) -> bool:
        running = sum(not each.ended.is_set() for each in asked)
        for _ in range(at_once - running):
            asked.append(driver.ask(random_tokens(length, seed=len(asked)), max_output_tokens=1))
        left[0] -= 1
        return left[0] == 0

    return ask


@pytest.mark.usefixtures("paced")
@pytest.mark.parametrize(("length", "at_once"), [(30, 6), (64, 4)])
def test_without_end_they_are_paced_and_a_build_keeps_its_share(
    drive: Drive, length: int, at_once: int
) -> None:
    driver = drive(prefill_chunk_tokens=_CHUNK, blocks=300)
    chunks: list[int] = []
    builds: list[int] = []

    def look(step: Step) -> None:
        if step.decode_count:
            chunks.append(prefill_of(step))
            builds.append(build_tokens(step))

    ask = without_end(driver, length, at_once, 100)
    running = driver.ask([1, 2], max_output_tokens=150, on_token=ask)
    driver.start_build("beside", random_tokens(4000, seed=1))
    driver.model.before.append(look)
    assert running.ending is Ending.STOP
    driver.drop("beside")
    long = [count for count in chunks if count > _PACED]
    assert sum(long) <= 3 * _CHUNK + _PACED * len(long), "a burst is beyond the pace once"
    assert max(chunks[40:]) <= _PACED
    assert max(builds) <= _PACED
    assert sum(builds[40:80]) >= 40 * _PACED // 4


@pytest.mark.usefixtures("paced")
@pytest.mark.parametrize("is_beside_a_build", [False, True])
def test_without_end_a_document_is_computed_all_the_same(drive: Drive, *, is_beside_a_build: bool) -> None:
    driver = drive(prefill_chunk_tokens=_CHUNK, blocks=300)
    ask = without_end(driver, 30, 6, 140)
    running = driver.ask([1, 2], max_output_tokens=150, on_token=ask)
    if is_beside_a_build:
        driver.start_build("beside", random_tokens(9000, seed=1))
    document = driver.ask(random_tokens(120 * _PACED // 4, seed=2), max_output_tokens=1)
    assert document.ending is Ending.MAX_TOKENS
    assert not running.ended.is_set(), "it came in its own time, not when the questions had ended"
    assert running.ending is Ending.STOP
    if is_beside_a_build:
        driver.drop("beside")


@pytest.mark.usefixtures("paced")
@pytest.mark.parametrize("steps_before", [0, 1])
def test_without_end_a_rebuild_in_the_background_goes_on(drive: Drive, steps_before: int) -> None:
    driver = drive(prefill_chunk_tokens=100, blocks=200)
    carried: list[int] = []
    ask = without_end(driver, 40, 3, 100)

    def begin(token: int) -> bool:
        if steps[0] == 4 + steps_before:
            driver.start_build("cache", random_tokens(2000, seed=1), is_rebuild=True, is_urgent=False)
            driver.model.before.append(lambda step: carried.append(build_tokens(step)))
        steps[0] += 1
        return ask(token)

    steps = [0]
    assert driver.ask([1, 2], max_output_tokens=150, on_token=begin).ending is Ending.STOP
    driver.drop("cache")
    shares = carried[:80]
    assert sum(count > 0 for count in shares) >= 80 // 4
    assert not any(one and other for one, other in pairwise(shares)), "at most every other step"


@pytest.mark.usefixtures("paced")
def test_a_build_is_paced_where_questions_take_less_than_they_could(drive: Drive) -> None:
    """Tails are so short that a question takes several steps; what it leaves goes to nobody."""
    driver = drive(prefill_chunk_tokens=_CHUNK, tail_tokens=16)
    builds: list[int] = []
    asked: list[Answer] = []

    def look(step: Step) -> None:
        if step.decode_count:
            builds.append(build_tokens(step))

    def begin(_: int) -> bool:
        if not asked:
            driver.start_build("beside", random_tokens(900, seed=2))
            asked.extend(driver.ask(random_tokens(60, seed=each), max_output_tokens=1) for each in range(6))
            driver.model.before.append(look)
        return all(each.ended.is_set() for each in asked)

    assert driver.ask([1, 2], max_output_tokens=120, on_token=begin).ending is Ending.STOP
    assert 0 < max(builds) <= _PACED


def test_a_prompt_without_a_token_is_refused(drive: Drive) -> None:
    driver = drive()
    driver.build("cache", random_tokens(130, seed=1))
    with driver.standing_still():
        empty = driver.ask([], "cache")
        other = driver.ask(random_tokens(20, seed=2))
    assert empty.ending is Ending.FAILED
    assert empty.error is not None
    assert empty.error.field == "contents"
    assert other.ending is not Ending.FAILED


def test_questions_alone_fill_a_chunk(drive: Drive) -> None:
    driver = drive(prefill_chunk_tokens=100)
    chunks: list[int] = []
    driver.model.before.append(lambda step: chunks.append(step.token_ids.numel() - step.decode_count))
    with driver.standing_still():
        asked = [driver.ask(random_tokens(15, seed=each), max_output_tokens=2) for each in range(8)]
    assert {each.ending for each in asked} == {Ending.MAX_TOKENS}
    assert [count for count in chunks if count] == [100, 20]
