"""Units of database work: each failure is told, and stopping loses nothing that was begun."""

import threading

import pytest

from core.errors import AppError, CacheNotFound, Internal, Unavailable
from workers.units import Units


def test_a_failure_is_told_as_what_it_is_or_as_ours(caplog: pytest.LogCaptureFixture) -> None:
    units = Units(threads=1)
    told: list[AppError] = []
    expected = CacheNotFound("gone")

    def fail(error: Exception) -> None:
        raise error

    units.start(lambda: fail(expected), told.append)
    assert not caplog.text
    units.start(lambda: fail(ZeroDivisionError("secret text")), told.append)
    units.start(lambda: None, told.append)
    units.stop()
    assert told[0] is expected
    assert isinstance(told[1], Internal)
    assert "ZeroDivisionError" in told[1].message
    assert "secret" not in told[1].message
    assert len(told) == 2
    assert "a unit of work failed" in caplog.text


def test_what_has_happened_is_recorded_once_the_database_is_back(caplog: pytest.LogCaptureFixture) -> None:
    units = Units(threads=1)
    told: list[AppError] = []
    recorded = threading.Event()
    away = [Unavailable("away"), Unavailable("still away")]

    def record() -> None:
        if away:
            raise away.pop()
        recorded.set()

    units.settle(record, told.append)
    assert recorded.wait(10)
    units.stop()
    assert told == []
    assert "still away" in caplog.text


def test_what_cannot_be_recorded_for_another_reason_is_told_at_once() -> None:
    units = Units(threads=1)
    told: list[AppError] = []

    def record() -> None:
        raise CacheNotFound("gone")

    units.settle(record, told.append)
    units.stop()
    assert [type(error) for error in told] == [CacheNotFound]


def test_stopping_waits_for_no_database_that_is_away() -> None:
    units = Units(threads=1)
    told: list[AppError] = []
    tried = threading.Event()

    def record() -> None:
        tried.set()
        raise Unavailable("away")

    units.settle(record, told.append)
    assert tried.wait(10)
    units.stop()
    assert [error.message for error in told] == ["away"]


def test_stopping_waits_for_what_was_begun_and_for_what_that_begins() -> None:
    units = Units(threads=2)
    go_on = threading.Event()
    done: list[int] = []

    def chain(number: int) -> None:
        assert go_on.wait(10)
        if number < 5:
            units.start(lambda: chain(number + 1), lambda _: None)
        done.append(number)

    units.start(lambda: chain(0), lambda _: None)
    stopping = threading.Thread(target=units.stop)
    stopping.start()
    go_on.set()
    stopping.join(10)
    assert done == list(range(6))
    with pytest.raises(RuntimeError):
        units.start(lambda: None, lambda _: None)


def test_a_failure_that_cannot_even_be_told_does_not_keep_it_from_stopping() -> None:
    units = Units(threads=1)

    def fail(_: object = None) -> None:
        raise ZeroDivisionError

    units.start(fail, fail)
    units.stop()
