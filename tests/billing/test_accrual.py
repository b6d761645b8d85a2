import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from billing import storage
from billing.accrual import accrue
from billing.charges import storage_charges
from billing.ledger import post
from billing.meters import Meter
from billing.prices import load_prices, store
from core.clock import instant
from models.ledger_entry import list_entries
from models.session import Database
from models.storage_segment import lock_segment
from tests.billing.rows import PRICES, T0, add_cache, add_prices, add_project, after, book, faults, joined
from tests.fakes.clock import ManualClock

STORAGE = Meter.CACHE_STORAGE_TOKEN_SECONDS
HOUR = 3600


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def run(database: Database, seconds: float) -> dict[str, str]:
    """Post all that is due; gives what was passed over."""
    with database.write() as session:
        unit = accrue(session, after(seconds))
    assert unit.is_last
    return unit.passed_over


def run_in_units(database: Database, seconds: float, limit: int) -> tuple[list[int], dict[str, str]]:
    """Post all that is due in small units; gives how many entries each posted, and what was passed over."""
    counts: list[int] = []
    passed_over: dict[str, str] = {}
    reached, is_last = None, False
    while not is_last:
        before = len(posted(database))
        with database.write() as session:
            unit = accrue(session, after(seconds), reached, limit)
        counts.append(len(posted(database)) - before)
        passed_over |= unit.passed_over
        reached, is_last = unit.reached, unit.is_last
    return counts, passed_over


def posted(database: Database) -> list[tuple[str, int, int]]:
    """Cache, hours after T0, seconds of a cache of 1,000 tokens."""
    with database.read() as session:
        return [
            (each.cache_id or "", int((each.hour - T0).total_seconds()) // HOUR, each.quantity // 1000)
            for each in list_entries(session, None, 0, 1000)
        ]


def test_a_living_cache_is_posted_by_whole_hours(database: Database, project: str) -> None:
    with database.write() as session:
        add_cache(session, project, "c", tokens=1000, start=after(600.5), end=after(10 * HOUR))
    for seconds, expected in (
        (700, []),
        (HOUR - 0.1, []),
        (HOUR, [("c", 0, 3000)]),
        (2 * HOUR + 5, [("c", 0, 3000), ("c", 1, 3600)]),
    ):
        run(database, seconds)
        assert posted(database) == expected
    assert faults(database, after(2 * HOUR + 10)) == []


def test_an_ended_cache_is_posted_to_its_end(database: Database, project: str) -> None:
    with database.write() as session:
        add_cache(session, project, "c", tokens=1000, start=T0, end=after(HOUR + 90.9))
    run(database, HOUR + 90.8)
    assert posted(database) == [("c", 0, 3600)]
    run(database, HOUR + 91)
    assert posted(database) == [("c", 0, 3600), ("c", 1, 90)]
    run(database, 99 * HOUR)
    assert len(posted(database)) == 2


@pytest.mark.parametrize("limit", [1, 2, 9, 10_000])
def test_what_was_missed_is_caught_up_in_units_of_few_entries(
    database: Database, project: str, limit: int
) -> None:
    hours = 12
    with database.write() as session:
        for number in range(3):
            add_cache(session, project, f"c{number}", tokens=1000, start=after(number), end=after(50 * HOUR))
        add_cache(session, project, "over", tokens=1000, start=after(HOUR + 1), end=after(3 * HOUR + 7))
    counts, passed_over = run_in_units(database, hours * HOUR + 7, limit)
    assert max(counts) <= limit
    assert sum(counts) == len(set(posted(database))) == 3 * hours + 3
    assert passed_over == {}
    assert faults(database, after(hours * HOUR + 7)) == []


def test_what_cannot_be_posted_starves_nobody(database: Database, project: str) -> None:
    """More of it than a unit has segments, older than all else: without a price, or posted with other figures."""
    with database.write() as session:
        for number in range(5):
            add_cache(session, project, f"unpriced{number}", end=after(5 * HOUR), model="unpriced")
            add_cache(session, project, f"conflict{number}", end=after(5 * HOUR))
        for number in range(3):
            add_cache(session, project, f"c{number}", tokens=1000, start=after(HOUR), end=after(5 * HOUR))
        for number in range(5):
            segment = lock_segment(session, f"conflict{number}")
            assert segment is not None
            charge = storage_charges(segment, T0, after(HOUR), load_prices(session))[0]
            post(session, [replace(charge, quantity=5_000)], T0)
    _, passed_over = run_in_units(database, 4 * HOUR, limit=2)
    refused = [f"{kind}{number}" for kind in ("unpriced", "conflict") for number in range(5)]
    assert passed_over.keys() == {f"the storage of cache {cache_id}" for cache_id in refused}
    assert 'Model "unpriced" has no price' in passed_over["the storage of cache unpriced0"]
    assert "holds 5000 for" in passed_over["the storage of cache conflict0"]
    assert sorted(each for each in posted(database) if not each[0].startswith("conflict")) == [
        (f"c{number}", hour, 3600) for number in range(3) for hour in (1, 2, 3)
    ]
    with database.write() as session:
        marks = {cache_id: lock_segment(session, cache_id) for cache_id in refused}
    assert all(each is not None and each.accrued_until == T0 for each in marks.values())


def test_running_it_again_or_twice_at_once_posts_nothing_more(database: Database, project: str) -> None:
    with database.write() as session:
        for number in range(40):
            add_cache(session, project, f"c{number}", tokens=1000, start=T0, end=after(5 * HOUR))
    threads = [threading.Thread(target=lambda: run_in_units(database, 9 * HOUR, limit=7)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(database, 9 * HOUR)
    assert len(posted(database)) == 40 * 5
    assert faults(database, after(9 * HOUR)) == []


def test_a_price_change_within_an_hour_posts_each_side_at_its_own(database: Database, project: str) -> None:
    dearer = book({STORAGE: 7 * PRICES[STORAGE]}, since=after(HOUR + 600))
    with database.write() as session:
        store(session, joined(book(), dearer), T0)
        add_cache(session, project, "c", tokens=1000, start=T0, end=after(2 * HOUR))
    run(database, 3 * HOUR)
    assert posted(database) == [("c", 0, 3600), ("c", 1, 600), ("c", 1, 3000)]
    with database.read() as session:
        amounts = [each.amount_nano_usd for each in list_entries(session, None, 0, 10)]
    assert amounts == [1_000_000, 166_666, 5_833_333]
    assert faults(database, after(3 * HOUR)) == []


def test_a_price_that_is_interrupted_within_an_hour_is_posted_twice(database: Database, project: str) -> None:
    special = book({STORAGE: 10}, since=after(600), project_id=project, until=after(1200))
    with database.write() as session:
        store(session, joined(book(), special), T0)
        add_cache(session, project, "c", tokens=1000, start=T0, end=after(HOUR))
    run(database, HOUR)
    assert posted(database) == [("c", 0, 600), ("c", 0, 600), ("c", 0, 2400)]
    assert faults(database, after(HOUR)) == []


def test_storage_without_a_price_holds_up_no_other_and_is_found(database: Database, project: str) -> None:
    with database.write() as session:
        add_cache(session, project, "a", tokens=1000, end=after(HOUR), model="unpriced")
        add_cache(session, project, "b", tokens=1000, end=after(HOUR))
    assert list(run(database, 9 * HOUR)) == ["the storage of cache a"]
    assert posted(database) == [("b", 0, 3600)]
    assert "storage_is_posted: cache a" in faults(database, after(9 * HOUR))[0]


def test_a_clock_that_is_set_back_ends_nothing_before_what_is_posted(
    database: Database, project: str
) -> None:
    with database.write() as session:
        add_cache(session, project, "c", tokens=1000, start=T0, end=after(10 * HOUR))
    run(database, 2 * HOUR)
    with database.write() as session:
        not_before = storage.last_event(session, "c")
        assert not_before == after(2 * HOUR)
        now = instant(session, ManualClock(after(HOUR)), not_before)
        storage.close(session, "c", now)
    run(database, 2 * HOUR)
    assert posted(database) == [("c", 0, 3600), ("c", 1, 3600)]


def test_hours_are_those_of_utc_whatever_the_second(database: Database, project: str) -> None:
    newyear = datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    with database.write() as session:
        add_cache(session, project, "c", tokens=1000, start=newyear, end=newyear + timedelta(seconds=2))
        accrue(session, newyear + timedelta(days=1))
        found = list_entries(session, None, 0, 10)
    assert [(each.hour.year, each.period, each.quantity) for each in found] == [
        (2026, "2026-12", 1000),
        (2027, "2027-01", 1000),
    ]
