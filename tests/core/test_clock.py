import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from core import clock as module
from core.clock import SystemClock, format_instant, instant
from core.metrics import Metrics
from models.session import Database
from tests.fakes.clock import START, ManualClock


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_the_system_clock_tells_the_time_in_utc() -> None:
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)


def test_a_unit_of_work_is_stamped_by_a_clock_that_goes_on_meanwhile(database: Database) -> None:
    """PostgreSQL's now() stands still from the beginning of a transaction."""
    with database.write() as session:
        first = instant(session, SystemClock())
        time.sleep(0.002)
        assert instant(session, SystemClock()) > first
    assert abs(datetime.now(UTC) - first) < timedelta(minutes=1)
    assert first.tzinfo is UTC


def test_postgresql_stamps_by_its_own_clock_and_not_by_the_hosts(migrated_postgresql: Database) -> None:
    class HostsClock(SystemClock):
        def now(self) -> datetime:
            raise AssertionError("the host was asked")

    with migrated_postgresql.read() as session:
        instant(session, HostsClock())


def test_an_instant_is_the_clocks_time_where_the_database_has_none(session: Session) -> None:
    assert instant(session, ManualClock()) == START


def test_a_clock_that_was_set_back_puts_no_event_before_the_last_one(session: Session) -> None:
    clock = ManualClock()
    last = instant(session, clock)
    clock.advance(-3600)
    assert instant(session, clock, not_before=last) == last


@pytest.mark.parametrize(
    ("seconds_back", "is_alarming"), [(0, False), (1, False), (1.000001, True), (3600, True)]
)
def test_a_clock_that_was_set_back_by_more_than_a_second_is_told(
    session: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seconds_back: float,
    is_alarming: bool,
) -> None:
    def count() -> float:
        counted = Metrics().registry.get_sample_value("headstart_clock_setbacks_total")
        assert counted is not None
        return counted

    monkeypatch.setattr(module, "_warning", module._Warning())
    before = count()
    for _ in range(2):
        instant(session, ManualClock(), not_before=START + timedelta(seconds=seconds_back))
    assert count() - before == 2 * is_alarming
    assert caplog.text.count("the clock was set back") == is_alarming  # once a minute


def test_a_clock_that_went_on_is_not_held_back(session: Session) -> None:
    clock = ManualClock()
    last = instant(session, clock)
    clock.advance(0.000001)
    assert instant(session, clock, not_before=last) == last + timedelta(microseconds=1)


def test_an_instant_is_in_utc_whatever_zone_the_clock_is_in(session: Session) -> None:
    clock = ManualClock(START.astimezone(timezone(timedelta(hours=9))))
    assert instant(session, clock).tzinfo is UTC
    assert instant(session, clock) == START


def test_instants_are_written_in_utc_with_microseconds() -> None:
    at = datetime(2026, 11, 29, 21, 0, tzinfo=timezone(timedelta(hours=9)))
    assert format_instant(at) == "2026-11-29T12:00:00.000000Z"
    assert format_instant(at + timedelta(microseconds=7)) == "2026-11-29T12:00:00.000007Z"
