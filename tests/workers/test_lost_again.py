"""KV that is lost while a request waits for it, built again, and lost again: the request gets its answer or the reason, and an end."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from core.errors import AppError, CacheNotFound, Internal, Unavailable
from core.messages import FailedEvent, FinishedEvent
from models.usage import UsageState
from tests.workers.workshop import Workshop, some_tokens
from workers.engine.piece import Piece
from workers.engine.residence import Bringing
from workers.engine.stored import Stored
from workers.engine.tiers.errors import Rejection

FINAL, VOID = UsageState.FINAL, UsageState.VOID
PREFIX = some_tokens(130, 1)  # two blocks and a piece
_ENDLESS = 30


class Losses:
    """For the next `times` that a request is about to read a cache, its KV is lost. then: what happens at the n-th."""

    def __init__(self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.count = 0
        self.times = times
        self.then: Callable[[int], None] = lambda _: None
        residence = workshop.engine._residence
        bring = residence.bring

        def lose(parts: Sequence[Stored], *, may_allocate: bool = True) -> Bringing:
            is_cache = bool(parts) and isinstance(parts[-1], Piece)
            if not is_cache or self.count == self.times:
                return bring(parts, may_allocate=may_allocate)
            self.count += 1
            assert self.count < _ENDLESS, "it goes on for ever"
            self.then(self.count)
            residence._lost += parts
            return Bringing.LOST

        monkeypatch.setattr(residence, "bring", lose)


@pytest.fixture
def cache_id(workshop: Workshop) -> str:
    """Of a cache that a restart has lost already."""
    cache_id = workshop.cached(PREFIX)
    workshop.restart()
    return cache_id


def failure(workshop: Workshop, request_id: str) -> AppError:
    event = workshop.last(request_id)
    assert isinstance(event, FailedEvent)
    return event.error


def assert_answers(workshop: Workshop, request_id: str, question: list[int]) -> None:
    assert isinstance(workshop.last(request_id), FinishedEvent)
    assert workshop.token_ids(request_id) == workshop.expected([*PREFIX, *question], 8)
    assert workshop.settled(request_id) == (FINAL, 8)


def assert_next_is_answered(workshop: Workshop, cache_id: str) -> None:
    assert_answers(workshop, workshop.ask([600], cache_id), [600])


@pytest.mark.parametrize("times", [1, 2, 5])
def test_what_is_lost_again_is_built_again(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, cache_id: str, times: int
) -> None:
    losses = Losses(workshop, monkeypatch, times)
    request_id = workshop.ask([500, 501], cache_id)
    assert_answers(workshop, request_id, [500, 501])
    assert losses.count == times
    assert workshop.engine.counters.prefill_tokens == (1 + times) * len(PREFIX) + 2
    usage = workshop.usage(request_id)
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens) == (2, len(PREFIX))
    assert workshop.driver.used_blocks() == 3


def test_many_who_lose_it_again_are_all_answered(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, cache_id: str
) -> None:
    Losses(workshop, monkeypatch, times=4)
    with workshop.driver.standing_still():
        asked = [workshop.ask([500 + number], cache_id) for number in range(5)]
    for number, request_id in enumerate(asked):
        assert_answers(workshop, request_id, [500 + number])
    assert workshop.driver.used_blocks() == 3


def test_files_that_a_restart_has_found_may_be_of_no_use(
    open_workshop: Callable[..., Workshop], tmp_path: Path
) -> None:
    """The cache is lost, found, and lost when it is read."""
    workshop = open_workshop(disk=tmp_path / "kv")
    cache_id = workshop.cached(PREFIX)
    workshop.driver.let_files_settle()
    paths = sorted((tmp_path / "kv").glob("*.kv*"))
    assert len(paths) == 2
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    workshop.restart()
    request_id = workshop.ask([500, 501], cache_id)
    assert_answers(workshop, request_id, [500, 501])
    assert workshop.engine._residence.rejections()[Rejection.CORRUPT]
    assert workshop.engine.counters.prefill_tokens == len(PREFIX) + 2
    assert_next_is_answered(workshop, cache_id)


@pytest.mark.parametrize("is_rebuilding", [False, True])
def test_a_request_that_loses_it_for_ever_ends_when_its_caller_has_waited_long_enough(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, cache_id: str, is_rebuilding: bool
) -> None:
    """At its deadline, as when its client hangs up, the API cancels it: as it is lost, or while it is built once more."""
    losses = Losses(workshop, monkeypatch, _ENDLESS)
    with workshop.driver.standing_still():
        request_id = workshop.ask([500], cache_id)

        def give_up(number: int) -> None:
            if number == 3 and is_rebuilding:
                workshop.driver.at_step(1, lambda: workshop.runtime.cancel(request_id))
            elif number == 3:
                workshop.runtime.cancel(request_id)

        losses.then = give_up
    assert isinstance(failure(workshop, request_id), Unavailable)
    assert workshop.settled(request_id) == (VOID, 0)
    assert losses.count == 3
    losses.times = losses.count
    assert_next_is_answered(workshop, cache_id)


def test_why_it_cannot_be_built_again_reaches_the_request(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, cache_id: str
) -> None:
    def break_down() -> None:
        raise RuntimeError("the device is on fire")

    losses = Losses(workshop, monkeypatch, times=1)
    losses.then = lambda _: workshop.driver.at_step(1, break_down)
    request_id = workshop.ask([500], cache_id)
    error = failure(workshop, request_id)
    assert isinstance(error, Internal)
    assert "on fire" in error.message
    assert workshop.settled(request_id) == (VOID, 0)
    assert_next_is_answered(workshop, cache_id)


def test_a_cache_that_ends_when_it_is_lost_again_is_no_more(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, cache_id: str
) -> None:
    losses = Losses(workshop, monkeypatch, times=1)
    losses.then = lambda _: workshop.delete(cache_id)
    request_id = workshop.ask([500], cache_id)
    assert isinstance(failure(workshop, request_id), CacheNotFound)
    assert workshop.settled(request_id) == (VOID, 0)
    workshop.wait_for_units()
    assert workshop.driver.used_blocks() == 0
