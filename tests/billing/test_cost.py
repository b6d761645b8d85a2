"""What answers tell of costs is what the ledger holds, and of a living cache what it will hold."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from billing import storage, usage
from billing.cost import cost_of_request, costs_of_caches
from billing.meters import CREATE_METERS, Meter
from billing.periods import Period
from billing.prices import store
from billing.report import Query, Subject, report
from core.messages import Cost
from models.ledger_entry import LedgerEntry, list_entries
from models.session import Database
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    generate,
    joined,
    reserve,
    write,
)

KEEP = Meter.CACHE_STORAGE_TOKEN_SECONDS
# Amounts that no meter shares, with halves of a nano all over.
ODD = {meter: 10_500_001 * number for number, meter in enumerate(Meter, 1)} | {Meter.INPUT_TOKENS: 99_999_999}


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book(ODD))
        return add_project(session, "p")


def entries(database: Database, project_id: str) -> Sequence[LedgerEntry]:
    with database.read() as session:
        return list_entries(session, project_id, 0, 10_000)


def request_cost(database: Database, project_id: str, request_id: str) -> Cost:
    with database.read() as session:
        return cost_of_request(session, project_id, request_id)


def cache_cost(database: Database, cache_id: str, now: datetime) -> dict[str, int]:
    with database.read() as session:
        cost = costs_of_caches(session, [cache_id, "absent"], now)[cache_id]
    assert cost.without_cache_nano_usd == 0
    return dict(cost.meters)


def on_the_books(database: Database, project_id: str, cache_id: str, now: datetime) -> dict[str, int]:
    """Writing and keeping, as posted, and what a report adds to it."""
    found = dict.fromkeys((meter.value for meter in CREATE_METERS), 0)
    for entry in entries(database, project_id):
        if entry.cache_id == cache_id and entry.meter in found:
            found[entry.meter] += entry.amount_nano_usd
    with database.read() as session:
        query = Query(Period(T0 - timedelta(days=1), T0 + timedelta(days=40)), project_id, (Subject.CACHE,))
        found[KEEP] += report(session, query, now).groups[cache_id,].provisional_nano_usd
    return found


class TestRequest:
    @pytest.mark.parametrize("output", [0, 3])
    @pytest.mark.parametrize("implicit", [0, 5])
    @pytest.mark.parametrize("cached", [0, 1000])
    def test_costs_what_is_posted_for_it(
        self, database: Database, project: str, cached: int, implicit: int, output: int
    ) -> None:
        used = cached + 7
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000)
            for request_id in ("other", "r"):
                generate(
                    session,
                    project,
                    request_id,
                    prompt=used,
                    cached=cached,
                    implicit=implicit,
                    output=output,
                    cache_id="c" if cached else None,
                )
        cost = request_cost(database, project, "r")
        posted = [each for each in entries(database, project) if each.dedupe_key.startswith("r:")]
        assert dict(cost.meters) == {each.meter: each.amount_nano_usd for each in posted}
        assert len(posted) == 1 + sum(map(bool, (cached, implicit, output)))
        assert cost.amount_nano_usd == sum(each.amount_nano_usd for each in posted)
        assert cost.without_cache_nano_usd == sum(each.without_cache_nano_usd for each in posted)

    def test_that_is_not_owed_costs_nothing(self, database: Database, project: str) -> None:
        with database.write() as session:
            reserve(session, project, "running", prompt=10)
            reserve(session, project, "failed", prompt=10)
            assert usage.void(session, "failed", 1, T0, "FAILED")
        for request_id in ("running", "failed", "absent"):
            assert request_cost(database, project, request_id) == Cost((), 0)

    def test_of_another_project_is_none(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "other")
            generate(session, other, "r", prompt=10, output=1)
        assert request_cost(database, project, "r") == Cost((), 0)
        assert request_cost(database, other, "r").amount_nano_usd > 0


class TestCache:
    def test_costs_what_is_posted_and_what_will_be_at_any_instant(
        self, database: Database, project: str
    ) -> None:
        """Over two changes of the price, half hours and fractions of a second, posted soon, late or never."""
        with database.write() as session:
            store(
                session,
                joined(
                    book(ODD),
                    book({KEEP: 7_000_000_001}, since=after(4000)),
                    book({KEEP: 0}, since=after(9001)),
                ),
                T0,
            )
            add_cache(session, project, "c", tokens=777, start=after(0.75), end=after(12_000.25))
            write(session, project, "c", tokens=777, at=after(0.75))
            generate(session, project, "hit", prompt=780, cached=777, output=1, cache_id="c", at=after(5))
        seen = []
        for seconds in (0.75, 1, 1800.5, 3599, 3600, 4000.5, 4001, 7300, 9000.75, 9002, 12_000.25, 20_000):
            now = after(seconds)
            cost = cache_cost(database, "c", now)
            assert cost == on_the_books(database, project, "c", now)
            bring_up_to_date(database, now)
            assert cost == cache_cost(database, "c", now) == on_the_books(database, project, "c", now)
            seen.append(cost[KEEP])
        assert seen == sorted(seen)
        assert seen[0] == 0
        kept = sum(each.amount_nano_usd for each in entries(database, project) if each.meter == KEEP)
        assert seen[-1] == seen[-2] == seen[-3] == kept

    def test_what_is_posted_stays_when_the_clock_is_set_back(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=777, end=after(9000))
            write(session, project, "c", tokens=777)
        bring_up_to_date(database, after(7200))
        assert cache_cost(database, "c", after(60)) == on_the_books(database, project, "c", after(60))
        assert cache_cost(database, "c", after(60)) == cache_cost(database, "c", after(7200))

    def test_follows_an_end_that_moves(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=777, end=after(9000))
            write(session, project, "c", tokens=777)
            storage.close(session, "c", after(100))
        late = after(8000)
        assert cache_cost(database, "c", late) == on_the_books(database, project, "c", late)
        assert cache_cost(database, "c", late) == cache_cost(database, "c", after(100))

    def test_that_was_never_active_has_none(self, database: Database, project: str) -> None:
        with database.read() as session:
            assert costs_of_caches(session, ["pending"], T0) == {}
            assert costs_of_caches(session, [], T0) == {}
