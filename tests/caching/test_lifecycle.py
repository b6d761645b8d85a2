from datetime import timedelta

import pytest
from sqlalchemy import event

from caching import lifecycle
from core.errors import (
    CacheDeleted,
    CacheExpired,
    CacheNotFound,
    CacheQuota,
    InvalidArgument,
    ProjectNotFound,
)
from models.cache import Cache, CacheEndReason, CacheState, find_prefix
from models.usage import UsageKind, UsageState, find_usage
from tests.caching.scene import Scene
from tests.fakes.clock import START
from tests.models.rows import Customer, add_customer

NOTHING = (None, None, None)


class TestCreate:
    def test_a_cache_is_pending_and_costs_nothing(self, scene: Scene) -> None:
        cache = scene.create(ttl_seconds=60)
        row = scene.row(cache)
        assert (row.state, row.token_count, row.fencing_token) == (CacheState.PENDING, 100, 1)
        assert (row.created_at, row.updated_at, row.expire_at) == (
            START,
            START,
            START + timedelta(seconds=60),
        )
        assert row.display_name == "handbook"
        assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)
        with scene.database.read() as session:
            assert find_prefix(session, cache.id) == (scene.customer.project_id, tuple(range(100)))

    def test_a_cache_that_is_not_built_looks_absent(self, scene: Scene) -> None:
        with pytest.raises(CacheNotFound) as caught:
            scene.get(scene.create())
        assert type(caught.value) is CacheNotFound

    @pytest.mark.parametrize("ttl_seconds", [0, -1])
    def test_an_expiry_that_is_not_in_the_future_is_refused(self, scene: Scene, ttl_seconds: float) -> None:
        with pytest.raises(InvalidArgument) as caught:
            scene.create(ttl_seconds=ttl_seconds)
        assert caught.value.field == "expire_time"
        assert scene.count("caches") == 0

    def test_an_unknown_project_is_refused(self, scene: Scene) -> None:
        with pytest.raises(ProjectNotFound):
            scene.create(customer=Customer("proj_none", scene.customer.key_id))

    def test_the_quota_is_refused_with_the_numbers(self, scene: Scene) -> None:
        scene.create(max_caches=2)
        scene.active(max_caches=2)
        with pytest.raises(CacheQuota, match="2 caches and may have 2") as caught:
            scene.create(max_caches=2)
        assert caught.value.metadata == {
            "quota": "caches_per_project",
            "limit": "2",
            "in_use": "2",
            "requested": "1",
        }
        assert scene.count("caches") == 2

    def test_the_token_quota_counts_live_caches_of_the_model(self, scene: Scene, other: Customer) -> None:
        scene.active(ttl_seconds=10)
        ended = scene.active()
        scene.create(customer=other)
        scene.delete(ended)
        scene.create(max_cached_tokens=200)
        with pytest.raises(CacheQuota, match="limit=299, requested=100, in use=200") as caught:
            scene.create(max_cached_tokens=299)
        assert caught.value.metadata == {
            "quota": "cached_tokens_per_project_and_model",
            "limit": "299",
            "in_use": "200",
            "requested": "100",
            "model": "tiny",
        }
        scene.clock.advance(10)
        scene.create(max_cached_tokens=200)
        with pytest.raises(CacheQuota):
            scene.create(max_cached_tokens=0)

    def test_what_has_ended_leaves_the_quota_swept_or_not(self, scene: Scene) -> None:
        scene.active(ttl_seconds=10, max_caches=3)
        scene.delete(scene.active(max_caches=3))
        scene.fail(scene.create(max_caches=3))
        scene.clock.advance(10)
        for _ in range(3):
            scene.create(max_caches=3)
        with pytest.raises(CacheQuota):
            scene.create(max_caches=3)

    def test_the_quota_is_each_projects_own(self, scene: Scene) -> None:
        scene.create(max_caches=1)
        with scene.database.write() as session:
            other = add_customer(session, "two")
        scene.create(customer=other, max_caches=1)


class TestActivate:
    def test_the_cache_its_segment_and_its_write_tokens_come_in_one_transaction(self, scene: Scene) -> None:
        cache = scene.create(ttl_seconds=60)
        built_at = scene.clock.advance(5)
        begins: list[object] = []
        event.listen(scene.database._engine, "begin", begins.append)

        assert scene.activate(cache)

        assert len(begins) == 1
        row = scene.get(cache)
        assert (row.state, row.activated_at, row.updated_at) == (CacheState.ACTIVE, built_at, built_at)
        assert scene.segment(cache) == (built_at, START + timedelta(seconds=60))
        assert (scene.count("usage"), scene.count("storage_segments")) == (1, 1)
        with scene.database.read() as session:
            usage = find_usage(session, f"write:{cache.id}")
            assert usage is not None
            assert (usage.kind, usage.state) == (UsageKind.CREATE, UsageState.FINAL)
            assert (usage.cache_write_tokens, usage.occurred_at) == (100, built_at)
            assert (usage.project_id, usage.cache_id) == (scene.customer.project_id, cache.id)

    def test_whether_it_was_activated_under_a_token(self, scene: Scene) -> None:
        cache = scene.create()

        def told(fencing_token: int) -> bool:
            with scene.database.write() as session:
                return lifecycle.was_activated(session, cache.id, fencing_token)

        assert not told(1)
        assert scene.activate(cache)
        assert (told(1), told(2)) == (True, False)
        scene.delete(cache)
        assert not told(1)

    @pytest.mark.parametrize("table", ["usage", "storage_segments"])
    def test_a_transaction_that_fails_at_any_row_activates_nothing(self, scene: Scene, table: str) -> None:
        cache = scene.create()

        def fail_at_the_row(_: object, __: object, statement: str, *___: object) -> None:
            if statement.startswith(f"INSERT INTO {table}"):
                raise RuntimeError("killed here")

        engine = scene.database._engine
        event.listen(engine, "before_cursor_execute", fail_at_the_row)
        with pytest.raises(RuntimeError, match="killed here"):
            scene.activate(cache)
        event.remove(engine, "before_cursor_execute", fail_at_the_row)

        assert scene.state(cache) == CacheState.PENDING
        assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)
        assert scene.activate(cache)

    @pytest.mark.parametrize("fencing_token", [0, 2])
    def test_a_build_that_lost_its_place_activates_and_bills_nothing(
        self, scene: Scene, fencing_token: int
    ) -> None:
        cache = scene.create()
        assert not scene.activate(cache, fencing_token)
        assert scene.state(cache) == CacheState.PENDING
        assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)

    @pytest.mark.parametrize("late_seconds", [0, 1])
    def test_an_expiry_that_passes_during_the_build_fails_it_unbilled(
        self, scene: Scene, late_seconds: float
    ) -> None:
        cache = scene.create(ttl_seconds=10)
        scene.clock.advance(10 + late_seconds)
        assert not scene.activate(cache)
        row = scene.row(cache)
        assert (row.state, row.end_reason) == (CacheState.FAILED, CacheEndReason.FAILED)
        assert row.failure == "cache_expired"
        assert scene.content(cache) == NOTHING
        assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)

    def test_a_second_time_bills_nothing(self, scene: Scene) -> None:
        cache = scene.active()
        assert not scene.activate(cache)
        assert (scene.count("usage"), scene.count("storage_segments")) == (1, 1)

    def test_a_cache_that_has_failed_or_never_was_stays_so(self, scene: Scene) -> None:
        cache = scene.create()
        scene.fail(cache)
        assert not scene.activate(cache)
        assert not scene.activate(Cache(id="none"))
        assert scene.state(cache) == CacheState.FAILED
        assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)

    def test_a_clock_that_was_set_back_starts_the_bill_no_earlier_than_the_cache(self, scene: Scene) -> None:
        cache = scene.create(ttl_seconds=60)
        scene.clock.advance(-3600)
        assert scene.activate(cache)
        assert scene.segment(cache) == (START, START + timedelta(seconds=60))


class TestFail:
    def test_a_failed_build_leaves_no_content_and_no_bill(self, scene: Scene) -> None:
        cache = scene.create()
        failed_at = scene.clock.advance(3)
        assert scene.fail(cache, "arena_full")
        row = scene.row(cache)
        assert (row.state, row.ended_at, row.failure) == (CacheState.FAILED, failed_at, "arena_full")
        assert scene.content(cache) == NOTHING
        assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)
        with pytest.raises(CacheNotFound) as caught:
            scene.get(cache)
        assert type(caught.value) is CacheNotFound

    def test_only_a_build_can_fail(self, scene: Scene) -> None:
        cache = scene.active()
        assert not scene.fail(cache)
        assert scene.state(cache) == CacheState.ACTIVE
        assert not scene.fail(Cache(id="none"))

    def test_a_clock_that_was_set_back_fails_it_nevertheless(self, scene: Scene) -> None:
        cache = scene.create()
        scene.clock.advance(-3600)
        assert scene.fail(cache)
        assert scene.row(cache).ended_at == START


class TestGet:
    def test_the_owner_gets_messages_and_prefix(self, scene: Scene) -> None:
        cache = scene.get_with_content(scene.active())
        assert cache.prefix_text == "<user>a customer's words"
        assert cache.messages == [{"role": "user", "text": "a customer's words"}]

    def test_another_project_is_told_what_a_stranger_is_told(self, scene: Scene) -> None:
        with scene.database.write() as session:
            other = add_customer(session, "two")
        told = []
        for cache in (scene.active(), scene.create(), deleted(scene), Cache(id="c" * 24)):
            with pytest.raises(CacheNotFound) as caught:
                scene.get(cache, other)
            assert type(caught.value) is CacheNotFound
            told.append(caught.value.message.replace(cache.id, "…"))
        assert len(set(told)) == 1

    @pytest.mark.trap("T37")
    def test_expiry_holds_to_the_microsecond_without_a_sweeper(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=10)
        scene.clock.advance(9.999999)
        scene.get(cache)
        scene.clock.advance(0.000001)
        with pytest.raises(CacheExpired) as caught:
            scene.get(cache)
        assert caught.value.metadata == {
            "name": f"cachedContents/{cache.id}",
            "expireTime": "2026-05-04T12:00:10.250000Z",
        }
        assert scene.state(cache) == CacheState.ACTIVE

    def test_its_owner_is_told_for_thirty_days_what_became_of_a_cache(self, scene: Scene) -> None:
        cache = deleted(scene)
        scene.clock.advance(30 * 86400 - 1)
        with pytest.raises(CacheDeleted):
            scene.get(cache)
        scene.clock.advance(1)
        with pytest.raises(CacheNotFound) as caught:
            scene.get(cache)
        assert type(caught.value) is CacheNotFound


class TestExtend:
    def test_a_ttl_counts_from_now_and_moves_the_end_of_the_bill(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=60)
        now = scene.clock.advance(50)
        extended = scene.extend(cache, ttl_seconds=30.5)
        assert extended.expire_at == now + timedelta(seconds=30.5)
        assert extended.updated_at == now
        assert extended.created_at == START
        assert scene.segment(cache) == (START, now + timedelta(seconds=30.5))

    def test_an_instant_may_lie_earlier_than_the_old_one(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=60)
        sooner = scene.after(1)
        scene.extend(cache, expire_at=sooner)
        assert scene.segment(cache) == (START, sooner)
        scene.clock.advance(1)
        with pytest.raises(CacheExpired):
            scene.get(cache)

    @pytest.mark.parametrize("ttl_seconds", [0, -5])
    def test_an_expiry_that_is_not_in_the_future_is_refused(self, scene: Scene, ttl_seconds: float) -> None:
        cache = scene.active(ttl_seconds=60)
        with pytest.raises(InvalidArgument):
            scene.extend(cache, ttl_seconds=ttl_seconds)
        with pytest.raises(InvalidArgument):
            scene.extend(cache, expire_at=scene.after(ttl_seconds))
        assert scene.segment(cache) == (START, START + timedelta(seconds=60))

    def test_the_longest_life_counts_from_now(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=60)
        scene.clock.advance(30)
        with scene.database.write() as session:
            lifecycle.extend(
                session, scene.clock, cache.project_id, cache.id, ttl_seconds=100, max_ttl_seconds=100
            )
            with pytest.raises(InvalidArgument, match="at most 100 seconds"):
                lifecycle.extend(
                    session, scene.clock, cache.project_id, cache.id, ttl_seconds=100.1, max_ttl_seconds=100
                )
        assert scene.get(cache).expire_at == scene.after(100)

    def test_nothing_is_raised_from_the_dead(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=10)
        scene.clock.advance(10)
        with pytest.raises(CacheExpired):
            scene.extend(cache, ttl_seconds=60)
        assert scene.segment(cache) == (START, START + timedelta(seconds=10))
        with pytest.raises(CacheDeleted):
            scene.extend(deleted(scene), ttl_seconds=60)
        with pytest.raises(CacheNotFound):
            scene.extend(scene.create(), ttl_seconds=60)

    def test_another_projects_cache_is_absent(self, scene: Scene) -> None:
        cache = scene.active()
        with scene.database.write() as session:
            other = add_customer(session, "two")
            for act in (
                lambda: lifecycle.extend(session, scene.clock, other.project_id, cache.id, ttl_seconds=9),
                lambda: lifecycle.delete(session, scene.clock, other.project_id, cache.id),
            ):
                with pytest.raises(CacheNotFound):
                    act()
        assert scene.get(cache).expire_at == START + timedelta(seconds=3600)


class TestDelete:
    def test_the_content_and_the_bill_end_now(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=60)
        now = scene.clock.advance(7.25)
        scene.delete(cache)
        row = scene.row(cache)
        assert (row.state, row.ended_at, row.end_reason) == (CacheState.DELETED, now, CacheEndReason.DELETED)
        assert scene.content(cache) == NOTHING
        assert scene.segment(cache) == (START, now)

    def test_a_second_time_is_told_so(self, scene: Scene) -> None:
        with pytest.raises(CacheDeleted):
            scene.delete(deleted(scene))

    def test_an_expired_cache_keeps_the_end_of_its_bill(self, scene: Scene) -> None:
        cache = scene.active(ttl_seconds=10)
        scene.clock.advance(60)
        with pytest.raises(CacheExpired):
            scene.delete(cache)
        assert scene.segment(cache) == (START, START + timedelta(seconds=10))

    def test_a_clock_that_was_set_back_gives_no_life_of_less_than_nothing(self, scene: Scene) -> None:
        cache = scene.active()
        scene.clock.advance(20)
        last = scene.extend(cache, ttl_seconds=60).updated_at
        scene.clock.advance(-3600)
        scene.delete(cache)
        assert scene.segment(cache) == (START, last)
        assert scene.row(cache).ended_at == last

    def test_a_clock_that_was_set_back_ends_no_cache_before_it_was_last_used(self, scene: Scene) -> None:
        cache = scene.active()
        last = scene.clock.advance(20)
        scene.acquire(cache)
        scene.clock.advance(-10)
        scene.delete(cache)
        assert scene.segment(cache) == (START, last)


def deleted(scene: Scene) -> Cache:
    cache = scene.active()
    scene.delete(cache)
    return cache
