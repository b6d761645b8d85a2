"""What is held with each step of a request's and a cache's life, what is counted of it, and what is refused."""

from datetime import UTC, datetime, timedelta

import pytest

from billing.limits import remove_limit
from caching import lifecycle
from caching.sweeping import sweep
from core.errors import SpendLimit
from models.cache import CacheState
from tests.caching.spending import A_SECOND, HIT, MONTH, REQUEST, WRITE, Spending, hours
from tests.models.rows import add_key

PLENTY = 10**12


class TestRequests:
    def test_a_request_is_held_at_its_most_and_counted_as_it_was(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        spending.acquire(None)
        assert spending.used() == (0, REQUEST)
        assert spending.holds() == {"gen_1": REQUEST}
        assert spending.finish(output=3)
        assert spending.used() == (7 * 1_000 + 3 * 4_000, 0)
        assert spending.holds() == {}
        assert spending.faults() == []

    def test_implicit_hits_cost_less_than_what_is_held(self, spending: Spending) -> None:
        cache = spending.active()
        spending.limit(PLENTY)
        held = spending.used()[1]
        spending.acquire(cache)
        assert spending.used()[1] == held + HIT
        assert spending.finish(output=10, implicit=5)
        assert spending.used() == (WRITE + HIT - 5 * 900, held)
        assert spending.faults() == []

    def test_what_fails_leaves_nothing_held(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        spending.acquire(None)
        assert spending.void()
        assert spending.used() == (0, 0)
        assert not spending.void()
        assert not spending.finish()
        assert spending.used() == (0, 0)
        assert spending.faults() == []

    def test_up_to_the_last_nano_is_let_through_and_one_more_is_refused(self, spending: Spending) -> None:
        spending.limit(2 * REQUEST - 1)
        spending.acquire(None, "first")
        with pytest.raises(SpendLimit):
            spending.acquire(None, "second")
        assert spending.count("usage") == 1
        spending.limit(2 * REQUEST)
        spending.acquire(None, "second")
        for name in ("first", "second"):
            assert spending.finish(name, output=10)
        assert spending.used() == (2 * REQUEST, 0)
        with pytest.raises(SpendLimit):
            spending.acquire(None, "third")
        assert spending.faults() == []

    def test_a_refusal_says_which_limit_its_value_what_is_used_and_when_to_retry(
        self, spending: Spending
    ) -> None:
        spending.acquire(None, "before")
        spending.finish("before", output=0)
        spending.limit(100_000)
        spending.acquire(None, "runs")
        with pytest.raises(SpendLimit) as caught:
            spending.acquire(None, "refused")
        error = caught.value
        assert error.metadata == {
            "quota": "spend_per_project_and_month",
            "month": MONTH,
            "limit": "100000",
            "in_use": "54000",
            "held": "47000",
            "requested": "47000",
        }
        wait = datetime(2026, 6, 1, tzinfo=UTC) - spending.clock.now()
        assert error.retry_after_seconds == wait.total_seconds()
        for words in ("The project", "0.000100000", MONTH, "0.000054000", "2026-06-01T00:00:00Z"):
            assert words in error.message

    def test_no_project_without_limits_holds_anything(self, spending: Spending) -> None:
        cache = spending.active()
        spending.acquire(cache)
        spending.finish()
        spending.extend(cache, ttl_seconds=7200)
        spending.keep_books()
        assert (spending.count("holds"), spending.count("limit_months"), spending.count("credits")) == (
            0,
            0,
            0,
        )


class TestKeys:
    def test_a_key_has_a_limit_of_its_own_beside_the_projects(self, spending: Spending) -> None:
        with spending.database.write() as session:
            other = add_key(session, spending.customer.project_id)
        spending.limit(3 * REQUEST)
        spending.limit(REQUEST, key_id=other.id)
        with_other = Spending(
            spending.database, spending.clock, type(spending.customer)(spending.customer.project_id, other.id)
        )
        with_other.acquire(None, "o1")
        with pytest.raises(SpendLimit, match=f"The key {other.id} may spend") as caught:
            with_other.acquire(None, "o2")
        assert caught.value.metadata["quota"] == "spend_per_key_and_month"
        assert caught.value.metadata["key"] == other.id
        assert spending.used() == spending.used(other.id) == (0, REQUEST)  # a refusal holds nothing anywhere
        spending.acquire(None, "p1")
        assert with_other.finish("o1", output=10)
        assert spending.finish("p1", output=10)
        assert spending.used() == (2 * REQUEST, 0)
        assert spending.used(other.id) == (REQUEST, 0)
        spending.limit(REQUEST, key_id=other.id)
        with pytest.raises(SpendLimit, match="The key"):
            with_other.acquire(None, "o3")
        spending.acquire(None, "p2")
        assert spending.faults() == []

    def test_the_projects_limit_binds_a_key_that_has_room(self, spending: Spending) -> None:
        spending.limit(REQUEST - 1)
        spending.limit(PLENTY, key_id=spending.customer.key_id)
        with pytest.raises(SpendLimit, match="The project may spend"):
            spending.acquire(None)
        assert spending.used(spending.customer.key_id) == (0, 0)


class TestCaches:
    def test_a_create_is_held_with_its_whole_life(self, spending: Spending) -> None:
        spending.limit(WRITE + hours(1))
        cache = spending.create(ttl_seconds=3600)
        assert spending.holds() == {f"write:{cache.id}": WRITE, f"storage:{cache.id}:{MONTH}": hours(1)}
        spending.clock.advance(60)
        assert spending.activate(cache)
        assert spending.used() == (WRITE, hours(1) - 60 * A_SECOND)
        spending.clock.advance(3 * 3600)
        spending.keep_books()
        assert spending.used() == (WRITE + hours(1) - 60 * A_SECOND, 0)
        assert spending.holds() == {}
        assert spending.faults() == []

    @pytest.mark.parametrize(("ttl_seconds", "short_by"), [(3600, 1), (7200, 3600 * A_SECOND)])
    def test_a_create_is_refused_where_its_life_finds_no_room(
        self, spending: Spending, ttl_seconds: int, short_by: int
    ) -> None:
        spending.limit(WRITE + ttl_seconds * A_SECOND - short_by)
        with pytest.raises(SpendLimit) as caught:
            spending.create(ttl_seconds=ttl_seconds)
        assert int(caught.value.metadata["limit"]) < int(caught.value.metadata["requested"])
        assert spending.count("caches") == spending.count("holds") == 0

    def test_what_fails_or_is_never_built_is_let_go(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        assert spending.fail(spending.create())
        assert spending.used() == (0, 0)
        cache = spending.create(ttl_seconds=10)
        spending.clock.advance(10)
        assert not spending.activate(cache)
        assert spending.used() == (0, 0)
        spending.create(ttl_seconds=10)
        spending.clock.advance(11)
        with spending.database.write() as session:
            assert len(sweep(session, spending.clock, 10)) == 1
        assert spending.used() == (0, 0)
        assert spending.faults() == []

    def test_the_hour_is_counted_when_it_is_posted(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        cache = spending.active(ttl_seconds=2 * 3600)
        whole = hours(2)
        spending.clock.advance(3599)
        spending.keep_books()
        assert spending.used() == (WRITE, whole)
        spending.clock.advance(1)
        spending.keep_books()
        assert spending.used() == (WRITE + hours(1), whole - hours(1))
        spending.clock.advance(600)
        spending.delete(cache)
        assert spending.used() == (WRITE + hours(1), 600 * A_SECOND)
        spending.keep_books()
        assert spending.used() == (WRITE + hours(1) + 600 * A_SECOND, 0)
        assert spending.faults() == []

    def test_a_longer_life_is_held_and_a_shorter_one_let_go(self, spending: Spending) -> None:
        spending.limit(WRITE + hours(3))
        cache = spending.active(ttl_seconds=3600)
        spending.extend(cache, ttl_seconds=3 * 3600)
        assert spending.used() == (WRITE, hours(3))
        with pytest.raises(SpendLimit) as caught:
            spending.extend(cache, ttl_seconds=3 * 3600 + 1)
        assert caught.value.metadata["requested"] == str(A_SECOND)
        assert spending.row(cache).expire_at == spending.after(3 * 3600)
        spending.extend(cache, ttl_seconds=60)
        assert spending.used() == (WRITE, 60 * A_SECOND)
        assert spending.faults() == []

    def test_a_limit_below_what_lives_ends_nothing_and_shortening_stays_possible(
        self, spending: Spending
    ) -> None:
        cache = spending.active(ttl_seconds=7200)
        assert spending.limit(1).left_nano_usd == 1 - WRITE - hours(2)
        spending.extend(cache, ttl_seconds=3600)
        assert spending.used() == (WRITE, hours(1))
        with pytest.raises(SpendLimit):
            spending.extend(cache, ttl_seconds=3601)
        spending.clock.advance(7200)
        spending.keep_books()
        assert spending.used() == (WRITE + hours(1), 0)
        assert spending.faults() == []


class TestMonths:
    def at(self, spending: Spending, year: int, month: int, day: int, hour: int) -> None:
        instant = datetime(year, month, day, hour, tzinfo=UTC)
        spending.clock.advance((instant - spending.clock.now()).total_seconds())

    def test_a_life_across_months_is_held_in_each(self, spending: Spending) -> None:
        self.at(spending, 2026, 5, 31, 22)
        spending.limit(WRITE + hours(2))
        with pytest.raises(SpendLimit) as caught:
            spending.create(ttl_seconds=6 * 3600)
        assert caught.value.metadata["month"] == "2026-06"
        assert "2026-07-01T00:00:00Z" in caught.value.message
        assert caught.value.retry_after_seconds == timedelta(days=30, hours=2).total_seconds()
        cache = spending.active(ttl_seconds=4 * 3600)
        assert spending.holds() == {
            f"storage:{cache.id}:2026-05": hours(2),
            f"storage:{cache.id}:2026-06": hours(2),
        }
        self.at(spending, 2026, 6, 1, 1)
        spending.keep_books()
        assert spending.used(at=datetime(2026, 5, 31, tzinfo=UTC)) == (WRITE + hours(2), 0)
        assert spending.used() == (hours(1), hours(1))
        self.at(spending, 2026, 6, 1, 2)
        spending.keep_books()
        assert spending.used() == (hours(2), 0)
        assert spending.faults() == []

    def test_a_request_counts_in_the_month_in_which_it_was_accepted(self, spending: Spending) -> None:
        self.at(spending, 2026, 5, 31, 23)
        spending.limit(REQUEST)
        spending.acquire(None, "late")
        self.at(spending, 2026, 6, 1, 0)
        spending.acquire(None, "next")
        assert spending.finish("late", output=10)
        assert spending.used(at=datetime(2026, 5, 31, tzinfo=UTC)) == (REQUEST, 0)
        assert spending.used() == (0, REQUEST)
        assert {each.period for each in spending.entries()} == {"2026-06"}
        assert {each.limit_month for each in spending.entries()} == {"2026-05"}
        assert spending.finish("next", output=10)
        assert spending.used() == (REQUEST, 0)
        assert spending.faults() == []

    def test_a_cache_written_in_the_month_after_it_was_asked_for_counts_before(
        self, spending: Spending
    ) -> None:
        self.at(spending, 2026, 5, 31, 23)
        spending.limit(WRITE + hours(1))
        cache = spending.create(ttl_seconds=3600 + 60)
        self.at(spending, 2026, 6, 1, 0)
        assert spending.activate(cache)
        assert spending.used(at=datetime(2026, 5, 31, tzinfo=UTC)) == (WRITE, 0)
        assert spending.used() == (0, 60 * A_SECOND)
        assert spending.faults() == []

    def test_a_new_month_begins_with_what_is_held_of_it(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        spending.active(ttl_seconds=40 * 86400)
        self.at(spending, 2026, 6, 3, 0)
        july = datetime(2026, 7, 1, tzinfo=UTC)
        assert spending.used(at=july) == (0, 0)
        spending.keep_books()
        spent, held = spending.used()
        assert (spent, held) == (hours(48), spending.holds()[next(iter(spending.holds()))])
        assert spending.faults() == []


class TestWhatIsOpenWhenALimitIsSet:
    def test_all_that_was_spent_runs_and_lives_counts(self, spending: Spending) -> None:
        spending.acquire(None, "done")
        spending.finish("done", output=10)
        spending.acquire(None, "runs")
        living = spending.active(ttl_seconds=3600)
        pending = spending.create(ttl_seconds=600)
        made = spending.limit(PLENTY)
        assert made.spent_nano_usd == REQUEST + WRITE
        assert spending.holds() == {
            "runs": REQUEST,
            f"storage:{living.id}:{MONTH}": hours(1),
            f"write:{pending.id}": WRITE,
            f"storage:{pending.id}:{MONTH}": 600 * A_SECOND,
        }
        assert spending.used() == (made.spent_nano_usd, sum(spending.holds().values()))
        assert spending.faults() == []
        spending.finish("runs", output=1)
        assert spending.activate(pending)
        spending.clock.advance(7200)
        spending.keep_books()
        assert spending.used() == (
            2 * REQUEST - 9 * 4_000 + 2 * WRITE + hours(1) + 600 * A_SECOND,
            0,
        )
        assert spending.faults() == []

    def test_a_limit_that_is_set_again_keeps_what_is_counted(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        spending.acquire(None)
        assert spending.limit(5).left_nano_usd == 5 - REQUEST
        assert spending.limit(None, 7).left_nano_usd is None
        assert spending.used() == (0, REQUEST)

    def test_without_limits_nothing_is_held_any_more(self, spending: Spending) -> None:
        key_id = spending.customer.key_id
        spending.limit(PLENTY)
        spending.limit(PLENTY, key_id=key_id)
        spending.acquire(None)
        for whose, holds in ((None, 1), (key_id, 0)):
            with spending.database.write() as session:
                remove_limit(session, spending.customer.project_id, whose)
            assert spending.count("holds") == holds
        assert spending.count("limit_months") == 0
        assert spending.finish()
        assert spending.faults() == []


class TestRecovery:
    def test_what_a_dead_process_left_is_let_go(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        living = spending.active(ttl_seconds=3600)
        spending.acquire(None, "mid-way")
        spending.acquire(living, "hit")
        pending = spending.create()
        with spending.database.write() as session:
            assert lifecycle.recover(session, spending.clock, "inc_2") == (1, 2)
        assert spending.state(pending) == CacheState.FAILED
        assert spending.holds() == {f"storage:{living.id}:{MONTH}": hours(1)}
        assert spending.used() == (WRITE, hours(1))
        assert spending.faults() == []

    def test_retired_caches_hold_what_they_owe_and_no_more(self, spending: Spending) -> None:
        spending.limit(PLENTY)
        spending.active(ttl_seconds=3600)
        spending.clock.advance(30)
        with spending.database.write() as session:
            assert len(lifecycle.retire(session, spending.clock, "zz:zz")) == 1
        assert spending.used() == (WRITE, 30 * A_SECOND)
