"""Hours and months of the lives' instants, by integers and the calendar alone."""

from datetime import timedelta
from functools import lru_cache

from bench.billing.lives import BEGINNING, HOUR, SECOND

EPOCH_SECONDS = int(BEGINNING.timestamp())  # from 1970 to the beginning
_EPOCH = EPOCH_SECONDS * SECOND


def hour_number(at: int) -> int:
    """Which hour of UTC an instant lies in, counted from 1970 on."""
    return (at + _EPOCH) // HOUR


def hour_start(at: int) -> int:
    return hour_number(at) * HOUR - _EPOCH


def seconds_left(second: int) -> int:
    """Of the hour of UTC, at this second of a life."""
    return 3_600 - (second + EPOCH_SECONDS) % 3_600


@lru_cache(maxsize=100_000)
def month_of_hour(hour: int) -> str:
    return f"{BEGINNING + timedelta(microseconds=hour * HOUR - _EPOCH):%Y-%m}"


def month_of(at: int) -> str:
    return month_of_hour(hour_number(at))


def next_month(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04}-{number % 12 + 1:02}"
