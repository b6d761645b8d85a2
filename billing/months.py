"""Months of a bill and of limits: those of UTC, written YYYY-MM."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta


def month_of(instant: datetime) -> str:
    """Name the month that an instant lies in."""
    return f"{instant.astimezone(UTC):%Y-%m}"


def end_of(month: str) -> datetime:
    """The first instant after a month."""
    start = datetime.fromisoformat(f"{month}-01").replace(tzinfo=UTC)
    return (start + timedelta(days=31)).replace(day=1)


def by_month(start: datetime, end: datetime) -> Iterator[tuple[str, datetime, datetime]]:
    """Cut [start, end) where months begin: each month, and what of it lies inside."""
    while start < end:
        month = month_of(start)
        until = min(end_of(month), end)
        yield month, start, until
        start = until
