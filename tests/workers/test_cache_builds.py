"""Caches become usable, and billed, once; are built again unbilled; and leave nothing behind when they are not."""

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import func, select, text

from caching import lifecycle
from core.errors import AppError, ArenaFull, CacheNotFound, DeadlineExceeded, Internal, Unavailable
from core.messages import BuiltEvent, DropCache, FailedEvent, FinishedEvent
from core.metrics import Metrics
from models.cache import Cache, CacheState
from models.usage import Usage, UsageKind, UsageState
from tests.workers.test_runtime import lose_the_next_commits_answer
from tests.workers.workshop import FINGERPRINT, Workshop, some_tokens
from workers.sweeper import Sweeper

FINAL, VOID = UsageState.FINAL, UsageState.VOID


def failure(workshop: Workshop, channel_id: str) -> AppError:
    event = workshop.last(channel_id)
    assert isinstance(event, FailedEvent)
    return event.error


def writes(workshop: Workshop) -> int:
    """How many creations were billed."""
    with workshop.database.read() as session:
        return session.scalars(
            select(func.count()).select_from(Usage).where(Usage.kind == UsageKind.CREATE)
        ).one()


def assert_nothing_of_it(workshop: Workshop, cache_id: str, code: str) -> None:
    """FAILED, its content gone, unbilled, and without memory."""
    with workshop.database.read() as session:
        cache = session.get_one(Cache, cache_id)
        assert (cache.state, cache.failure) == (CacheState.FAILED, code)
        assert cache.prefix_text is None
    assert workshop.storage(cache_id) is None
    assert workshop.usage(f"write:{cache_id}") is None
    workshop.wait_for_units()
    assert workshop.driver.used_blocks() == 0


def test_a_cache_is_usable_and_billed_when_it_is_told(workshop: Workshop) -> None:
    cache_id = workshop.create(some_tokens(130, 1))
    assert workshop.cache(cache_id).state == CacheState.PENDING
    workshop.clock.advance(2)
    workshop.build(cache_id)
    assert workshop.last(cache_id) == BuiltEvent(0)
    cache = workshop.cache(cache_id)
    assert cache.state == CacheState.ACTIVE
    write, storage = workshop.usage(f"write:{cache_id}"), workshop.storage(cache_id)
    assert write is not None
    assert (write.state, write.cache_write_tokens) == (FINAL, 130)
    assert storage is not None
    assert (storage.token_count, storage.started_at, storage.ends_at) == (
        130,
        workshop.clock.now(),
        cache.expire_at,
    )
    assert workshop.driver.used_blocks() == 3


def test_a_build_that_is_sent_twice_activates_and_bills_once(workshop: Workshop) -> None:
    prefix = some_tokens(130, 1)
    cache_id = workshop.create(prefix)
    workshop.sent_twice.add(cache_id)
    with workshop.driver.standing_still():
        workshop.build(cache_id)
        workshop.build(cache_id)
        workshop.wait_for_units()
    workshop.last(cache_id)
    workshop.driver.used_blocks()  # both have ended in the engine
    workshop.wait_for_units()
    assert workshop.events[cache_id].count(BuiltEvent(0)) == 1
    assert workshop.engine.counters.prefill_tokens == 130
    assert writes(workshop) == 1
    # The one that came too late took nothing away.
    request_id = workshop.ask([500], cache_id, max_output_tokens=3)
    assert isinstance(workshop.last(request_id), FinishedEvent)
    assert workshop.engine.counters.prefill_tokens == 131
    assert workshop.token_ids(request_id) == workshop.expected([*prefix, 500], 3)


def test_a_build_under_an_old_fencing_token_activates_nothing(workshop: Workshop) -> None:
    cache_id = workshop.create(some_tokens(70, 1))
    workshop.build(cache_id, fencing_token=2)
    assert isinstance(failure(workshop, cache_id), DeadlineExceeded)
    assert workshop.cache(cache_id).state == CacheState.PENDING
    assert writes(workshop) == 0


def test_a_cache_that_does_not_fit_fails_with_the_numbers(open_workshop: Callable[..., Workshop]) -> None:
    workshop = open_workshop(blocks=8)
    cache_id = workshop.create(some_tokens(300, 1))
    workshop.build(cache_id)
    error = failure(workshop, cache_id)
    assert isinstance(error, ArenaFull)
    assert error.metadata == {"quota": "arena_tokens", "requested": "300", "in_use": "0", "limit": "256"}
    assert workshop.engine.counters.steps == 0
    assert_nothing_of_it(workshop, cache_id, "arena_full")


def test_a_build_that_breaks_fails(workshop: Workshop) -> None:
    def break_down() -> None:
        raise RuntimeError("the device is on fire")

    cache_id = workshop.create(some_tokens(300, 1))
    with workshop.driver.standing_still():
        workshop.build(cache_id)
        workshop.driver.at_step(1, break_down)
    assert isinstance(failure(workshop, cache_id), Internal)
    assert_nothing_of_it(workshop, cache_id, "internal")


def test_a_build_that_is_cancelled_stops_and_fails(workshop: Workshop) -> None:
    cache_id = workshop.create(some_tokens(900, 1))
    with workshop.driver.standing_still():
        workshop.build(cache_id)
        workshop.driver.at_step(2, lambda: workshop.runtime.cancel(cache_id))
    failed = failure(workshop, cache_id)
    assert workshop.engine.counters.prefill_tokens == 300
    assert_nothing_of_it(workshop, cache_id, failed.code)


def test_a_cache_that_expires_while_it_is_built_fails(workshop: Workshop) -> None:
    cache_id = workshop.create(some_tokens(300, 1), ttl_seconds=60)
    with workshop.driver.standing_still():
        workshop.build(cache_id)
        workshop.driver.at_step(1, lambda: workshop.clock.advance(60))
    error = failure(workshop, cache_id)
    assert isinstance(error, DeadlineExceeded)
    assert "ttl" in error.message
    assert_nothing_of_it(workshop, cache_id, "cache_expired")


def test_a_cache_that_was_given_up_before_its_build_began_is_not_computed(workshop: Workshop) -> None:
    cache_id = workshop.create(some_tokens(300, 1))
    with workshop.database.write() as session:
        assert lifecycle.fail(session, workshop.clock, cache_id, "cancelled")
    workshop.build(cache_id)
    assert isinstance(failure(workshop, cache_id), DeadlineExceeded)
    assert workshop.engine.counters.steps == 0
    assert_nothing_of_it(workshop, cache_id, "cancelled")


def test_an_activation_that_breaks_leaves_no_memory_behind(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    cache_id = workshop.create(some_tokens(130, 1))
    with workshop.database.write() as session:  # so that the write cannot be recorded
        session.execute(
            text("CREATE TRIGGER refuse BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'no'); END")
        )
    workshop.build(cache_id)
    assert isinstance(failure(workshop, cache_id), Internal)
    assert "a unit of work failed" in caplog.text
    assert_nothing_of_it(workshop, cache_id, "internal")


def test_a_build_that_breaks_before_it_begins_leaves_no_row_waiting(workshop: Workshop) -> None:
    """Nobody need be there to give it up: whoever has its idempotency key may have hung up."""
    cache_id = workshop.create(some_tokens(130, 1))
    with workshop.database.write() as session:  # so that its tokens cannot be read
        session.execute(text("UPDATE caches SET token_ids = x'010203'"))
    workshop.build(cache_id)
    assert isinstance(failure(workshop, cache_id), Internal)
    assert_nothing_of_it(workshop, cache_id, "internal")


def test_what_was_lost_is_built_again_unbilled_and_answers_alike(workshop: Workshop) -> None:
    prefix, question = some_tokens(130, 1), some_tokens(7, 2)
    cache_id = workshop.cached(prefix)
    before = workshop.ask(question, cache_id)
    workshop.last(before)
    workshop.restart()
    after = workshop.ask(question, cache_id)
    assert workshop.last(after) == workshop.last(before)
    assert (
        workshop.token_ids(after) == workshop.token_ids(before) == workshop.expected([*prefix, *question], 8)
    )
    assert workshop.engine.counters.prefill_tokens == 137
    usage = workshop.usage(after)
    assert usage is not None
    assert (usage.state, usage.input_tokens, usage.cache_read_tokens) == (FINAL, 7, 130)
    assert writes(workshop) == 1


def test_many_who_miss_it_wait_for_one_rebuild(workshop: Workshop) -> None:
    prefix = some_tokens(130, 1)
    cache_id = workshop.cached(prefix)
    workshop.restart()
    with workshop.driver.standing_still():
        requests = [workshop.ask([1000 + n], cache_id, max_output_tokens=3) for n in range(5)]
    for number, request_id in enumerate(requests):
        assert isinstance(workshop.last(request_id), FinishedEvent)
        assert workshop.token_ids(request_id) == workshop.expected([*prefix, 1000 + number], 3)
    assert workshop.engine.counters.prefill_tokens == 130 + 5
    assert writes(workshop) == 1


def test_the_time_to_the_first_token_has_the_rebuild_in_it(workshop: Workshop) -> None:
    """It begins where the runtime took the request, which the engine had to send back at first."""
    cache_id = workshop.cached(some_tokens(130, 1))
    workshop.restart()
    metrics = Metrics()
    workshop.engine.report_to(metrics)
    with workshop.driver.standing_still():
        requests = [workshop.ask([1000 + n], cache_id, max_output_tokens=1) for n in range(3)]
        time.sleep(0.2)
    for request_id in requests:
        assert isinstance(workshop.last(request_id), FinishedEvent)
    name, labels = "headstart_time_to_first_token_seconds", {"kind": "explicit", "tier": "rebuilt"}
    assert metrics.registry.get_sample_value(f"{name}_count", labels) == 3
    seconds = metrics.registry.get_sample_value(f"{name}_sum", labels)
    assert seconds is not None
    assert 3 * 0.2 <= seconds < 60
    assert metrics.registry.get_sample_value("headstart_rebuilds_total", {"reason": "asked"}) == 1


def test_after_a_restart_every_live_cache_is_built_again_and_the_one_asked_for_first(
    workshop: Workshop,
) -> None:
    prefixes = {workshop.cached(some_tokens(150, n)): some_tokens(150, n) for n in range(3)}
    ended = workshop.cached(some_tokens(150, 9))
    workshop.delete(ended)
    workshop.create(some_tokens(150, 10))  # is not usable yet, and so not rebuilt
    workshop.restart()
    *_, newest = prefixes
    ready: list[str] = []
    with workshop.driver.standing_still():
        assert workshop.runtime.builds.rebuild_all("another:model") == 0
        assert workshop.runtime.builds.rebuild_all(FINGERPRINT) == 3
        request_id = workshop.ask([700], newest, max_output_tokens=1)
        workshop.driver.at_step(2, lambda: ready.extend(workshop.engine._scheduler._pins))
    assert isinstance(workshop.last(request_id), FinishedEvent)
    assert workshop.token_ids(request_id) == workshop.expected([*prefixes[newest], 700], 1)
    assert ready == [newest]
    others = {cache_id: workshop.ask([700], cache_id, max_output_tokens=1) for cache_id in prefixes}
    for cache_id, other in others.items():
        assert isinstance(workshop.last(other), FinishedEvent)
        assert workshop.token_ids(other) == workshop.expected([*prefixes[cache_id], 700], 1)
    assert workshop.engine.counters.prefill_tokens == 3 * 150 + 4
    assert writes(workshop) == 4


def test_why_a_rebuild_failed_reaches_the_request(open_workshop: Callable[..., Workshop]) -> None:
    """The arena was made smaller than what was promised."""
    workshop = open_workshop(blocks=20)
    first, second = workshop.cached(some_tokens(300, 1)), workshop.cached(some_tokens(300, 2))
    workshop.restart(blocks=8)
    served = workshop.ask([500], first)
    assert isinstance(workshop.last(served), FinishedEvent)
    refused = workshop.ask([500], second)
    error = failure(workshop, refused)
    assert isinstance(error, ArenaFull)
    assert error.metadata == {"quota": "arena_tokens", "requested": "300", "in_use": "320", "limit": "512"}
    assert workshop.settled(refused) == (VOID, 0)


def test_a_rebuild_that_breaks_fails_the_request_unbilled_and_is_tried_again_for_the_next(
    workshop: Workshop,
) -> None:
    def break_down() -> None:
        raise RuntimeError("the device is on fire")

    cache_id = workshop.cached(some_tokens(300, 1))
    workshop.restart()
    with workshop.driver.standing_still():
        failed = workshop.ask([500], cache_id)
        workshop.driver.at_step(1, break_down)
    assert isinstance(failure(workshop, failed), Internal)
    assert workshop.settled(failed) == (VOID, 0)
    again = workshop.ask([500], cache_id)
    assert isinstance(workshop.last(again), FinishedEvent)
    assert workshop.cache(cache_id).state == CacheState.ACTIVE


@pytest.mark.parametrize("step", [0, 1])
def test_cancelling_a_request_does_not_stop_the_rebuild_it_waits_for(workshop: Workshop, step: int) -> None:
    prefix = some_tokens(300, 1)
    cache_id = workshop.cached(prefix)
    workshop.restart()
    with workshop.driver.standing_still():
        cancelled = workshop.ask([500], cache_id)
        workshop.driver.at_step(step, lambda: workshop.runtime.cancel(cancelled))
    failure(workshop, cancelled)
    assert workshop.settled(cancelled) == (VOID, 0)
    request_id = workshop.ask([500], cache_id, max_output_tokens=2)
    assert isinstance(workshop.last(request_id), FinishedEvent)
    assert workshop.token_ids(request_id) == workshop.expected([*prefix, 500], 2)
    assert workshop.engine.counters.prefill_tokens == 301


def test_cancelling_a_request_that_is_not_with_the_engine_at_the_moment(workshop: Workshop) -> None:
    """It missed its cache, and the unit that will order the rebuild has not begun."""
    cache_id = workshop.cached(some_tokens(130, 1))
    workshop.restart()
    with workshop.units_standing_still():
        request_id = workshop.ask([500], cache_id)
        workshop.driver.used_blocks()  # by now the engine has turned it away
        workshop.runtime.cancel(request_id)
    failure(workshop, request_id)
    assert workshop.settled(request_id) == (VOID, 0)


def test_a_request_whose_cache_ends_before_its_rebuild_begins_is_told_so(workshop: Workshop) -> None:
    cache_id = workshop.cached(some_tokens(130, 1))
    workshop.restart()
    with workshop.driver.standing_still():
        request_id = workshop.ask([500], cache_id)
        workshop.delete(cache_id)
    assert isinstance(failure(workshop, request_id), CacheNotFound)
    assert workshop.settled(request_id) == (VOID, 0)


def test_a_cache_that_ends_while_it_is_rebuilt_serves_who_waits_and_leaves_no_memory(
    workshop: Workshop,
) -> None:
    prefix = some_tokens(300, 1)
    cache_id = workshop.cached(prefix)
    workshop.restart()
    with workshop.driver.standing_still():
        request_id = workshop.ask([500], cache_id, max_output_tokens=3)

        def end_it() -> None:
            workshop.wait_for_units()  # by then the request follows the build
            workshop.delete(cache_id)

        workshop.driver.at_step(1, end_it)
    assert isinstance(workshop.last(request_id), FinishedEvent)
    assert workshop.token_ids(request_id) == workshop.expected([*prefix, 500], 3)
    assert workshop.settled(request_id) == (FINAL, 3)
    assert workshop.driver.used_blocks() == 0


def test_memory_of_a_cache_that_ended_unheard_during_its_rebuild_is_given_back(workshop: Workshop) -> None:
    """Its DropCache came before there was anything to drop."""
    cache_id = workshop.cached(some_tokens(300, 1))
    workshop.restart()
    last_chunk = threading.Event()
    with workshop.driver.standing_still():
        workshop.runtime.builds.rebuild_all(FINGERPRINT)
        workshop.driver.at_step(1, lambda: workshop.delete(cache_id, tell=False))
        workshop.driver.at_step(2, last_chunk.set)
    assert last_chunk.wait(10)
    workshop.driver.used_blocks()  # that step is over, and what it started is among the units
    workshop.wait_for_units()
    assert workshop.driver.used_blocks() == 0


def test_dropping_what_is_not_there_is_no_error(workshop: Workshop) -> None:
    workshop.runtime.handle(DropCache("neverwas"))
    assert isinstance(workshop.last(workshop.ask([500])), FinishedEvent)


def test_what_has_expired_is_swept_and_its_memory_given_back(workshop: Workshop) -> None:
    lives, expired = workshop.cached(some_tokens(70, 1)), workshop.cached(some_tokens(130, 2))
    with workshop.database.write() as session:
        lifecycle.extend(session, workshop.clock, workshop.customer.project_id, lives, ttl_seconds=10_000)
    workshop.clock.advance(3600)
    sweeper = Sweeper(workshop.database, workshop.clock, workshop.runtime.handle, interval_seconds=3600)
    assert sweeper.sweep_once() == 1
    assert sweeper.sweep_once() == 0
    assert workshop.driver.used_blocks() == 2
    assert workshop.cache(expired).state == CacheState.EXPIRED
    assert workshop.cache(lives).state == CacheState.ACTIVE
    sweeper.start()
    sweeper.stop()


def test_what_has_expired_is_dropped_although_the_answer_of_the_database_is_lost(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later turn finds the row."""
    cache_id = workshop.cached(some_tokens(130, 1))
    workshop.clock.advance(3600)
    sweeper = Sweeper(workshop.database, workshop.clock, workshop.runtime.handle, interval_seconds=3600)
    lose_the_next_commits_answer(workshop, monkeypatch)
    with pytest.raises(Unavailable):
        sweeper.sweep_once()
    assert workshop.cache(cache_id).state == CacheState.EXPIRED
    assert sweeper.sweep_once() == 0
    assert workshop.driver.used_blocks() == 0
