"""Whoever keeps the books posts what is due, proves it, and survives what goes wrong meanwhile."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from math import isnan

import pytest
from sqlalchemy import text

from billing.accrual import accrue
from billing.limits import set_limit
from billing.verify import Finding
from core.errors import Unavailable
from core.metrics import Metrics
from models.ledger_entry import list_entries, newest_settled_id
from models.ledger_hour import watermark
from models.session import Database
from tests.billing.rows import T0, add_cache, add_prices, add_project, after, book, generate, key_of
from tests.fakes.clock import ManualClock
from workers import bookkeeper as module
from workers.bookkeeper import Bookkeeper

HOUR = 3600


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def bookkeeper(database: Database, clock: ManualClock, metrics: Metrics) -> Bookkeeper:
    return Bookkeeper(database, clock, metrics, interval_seconds=0.02, verify_interval_seconds=0.05)


def count(database: Database) -> int:
    with database.read() as session:
        return len(list_entries(session, None, 0, 1000))


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def findings(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("headstart_billing_findings")


def test_a_turn_posts_all_that_is_due_and_rolls_it_up(
    database: Database, project: str, clock: ManualClock, bookkeeper: Bookkeeper
) -> None:
    with database.write() as session:
        add_cache(session, project, "c", start=T0, end=after(5 * HOUR))
        generate(session, project, "r", prompt=10, output=2)
    clock.advance(2 * HOUR)
    bookkeeper.keep()
    assert count(database) == 4
    with database.write() as session:
        assert watermark(session) == newest_settled_id(session) > 0
    assert bookkeeper.verify() == []


def test_its_thread_goes_on_by_itself(
    database: Database, project: str, clock: ManualClock, bookkeeper: Bookkeeper, metrics: Metrics
) -> None:
    with database.write() as session:
        add_cache(session, project, "c", start=T0, end=after(5 * HOUR))
    bookkeeper.start()
    try:
        for hours in (1, 2, 3):
            clock.advance(HOUR)
            wait_until(lambda: count(database) == hours)  # noqa: B023 - called at once
    finally:
        bookkeeper.stop()


def test_that_the_books_agree_is_told_once_somebody_has_looked(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def verified_at() -> float | None:
        return metrics.registry.get_sample_value("headstart_billing_verified_timestamp_seconds")

    def fail(*_: object) -> None:
        raise ValueError("ours")

    found = findings(metrics)
    assert found is not None
    assert isnan(found)
    with monkeypatch.context() as patched:
        patched.setattr(module, "take", fail)
        with pytest.raises(ValueError, match="ours"):
            bookkeeper.verify()
        assert (findings(metrics), verified_at()) == (1, 0)
    late = Bookkeeper(database, ManualClock(T0), metrics, interval_seconds=60, verify_interval_seconds=3600)
    late.start()
    wait_until(lambda: verified_at() == T0.timestamp())
    late.stop()
    assert findings(metrics) == 0


def test_a_stop_does_not_wait_for_the_rest_of_a_verification(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()

    def look(*_: object) -> list[Finding]:
        begun.set()
        return []

    monkeypatch.setattr(module, "list_looks", lambda *_: [("endless", look)] * 1_000_000)
    monkeypatch.setattr(module, "take", look)
    bookkeeper.start()
    assert begun.wait(20)
    bookkeeper.stop()
    found = findings(metrics)
    assert found is not None
    assert isnan(found)


def test_what_cannot_be_posted_keeps_nothing_else_from_being_done(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not the other charges, nor rolling up, nor soft limits, nor the verification that finds it."""
    with database.write() as session:
        set_limit(session, project, None, hard_nano_usd=None, soft_nano_usd=1, now=T0)
        for cache_id in ("bad", "good"):
            add_cache(session, project, cache_id, start=T0 - timedelta(hours=2), end=after(5 * HOUR))
        add_cache(session, project, "unpriced", start=T0 - timedelta(hours=2), model="unpriced")
        accrue(session, T0 - timedelta(hours=1))
        session.execute(
            text(
                "UPDATE storage_segments SET token_count = 7, accrued_until = started_at WHERE cache_id = 'bad'"
            )
        )
    bookkeeper.start()
    wait_until(lambda: (findings(metrics) or 0) > 0)
    bookkeeper.stop()
    assert metrics.registry.get_sample_value("headstart_billing_passed_over") == 2
    assert "the storage of cache bad is not posted: Ledger entry" in caplog.text
    assert "the storage of cache unpriced is not posted: Model" in caplog.text
    assert "a soft limit is reached" in caplog.text
    with database.write() as session:
        assert [each.cache_id for each in list_entries(session, None, 0, 10)] == ["bad", "good", "good"]
        assert watermark(session) == newest_settled_id(session)


def test_what_it_finds_wrong_is_told(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with database.write() as session:
        generate(session, project, "r", prompt=10, output=2)
        session.execute(text("UPDATE usage SET output_tokens = 3"))
    bookkeeper.keep()
    assert len(bookkeeper.verify()) == findings(metrics) == 3
    assert "the books do not agree: ledger_is_recomputed" in caplog.text


def test_it_looks_at_the_last_two_days(
    database: Database, project: str, clock: ManualClock, bookkeeper: Bookkeeper
) -> None:
    with database.write() as session:
        generate(session, project, "r", prompt=10, output=2)
        session.execute(text("UPDATE usage SET output_tokens = 3"))
    clock.advance(timedelta(days=3).total_seconds())
    assert bookkeeper.verify() == []


@pytest.mark.parametrize(
    "error", [Unavailable("The database is busy.", retry_after_seconds=1), ValueError("ours")]
)
def test_a_turn_that_fails_is_taken_again(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    calls = []

    def keep(*_: object) -> None:
        calls.append(1)
        raise error

    for step in ("post_due", "roll_up_posted", "tell_soft_limits", "list_looks"):
        monkeypatch.setattr(module, step, keep)
    bookkeeper.start()
    wait_until(lambda: len(calls) >= 3 * 3 + 1)
    bookkeeper.stop()
    assert "keeping the books failed" in caplog.text


def test_a_soft_limit_is_told_once_it_is_reached(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told(whose: str) -> float | None:
        return metrics.registry.get_sample_value("headstart_soft_limits_reached_total", {"whose": whose})

    with database.write() as session:
        for key_id in (None, key_of(project)):
            set_limit(session, project, key_id, hard_nano_usd=None, soft_nano_usd=100_000, now=T0)
    bookkeeper.keep()
    assert (told("project"), told("key")) == (None, None)
    with database.write() as session:
        add_cache(session, project, "c", tokens=1000, start=T0, end=after(5 * HOUR))
        accrue(session, after(HOUR))  # 1,000,000 nano-USD
    for _ in range(2):
        bookkeeper.keep()
    assert (told("project"), told("key")) == (1, 1)
    messages = [record.getMessage() for record in caplog.records if "soft limit" in record.getMessage()]
    assert (
        messages == ["a soft limit is reached: 0.001000000 USD are spent in 2026-03 of 0.000100000 USD"] * 2
    )
    assert {vars(record).get("project_id") for record in caplog.records} == {project}


def test_a_soft_limit_is_told_again_rather_than_never(
    database: Database,
    project: str,
    bookkeeper: Bookkeeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process dies while it tells."""
    with database.write() as session:
        set_limit(session, project, None, hard_nano_usd=None, soft_nano_usd=0, now=T0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "usd", lambda _: 1 / 0)
        bookkeeper.keep()
    assert "a soft limit is reached" not in caplog.text
    bookkeeper.keep()
    assert "a soft limit is reached" in caplog.text
