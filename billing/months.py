"""Months of a bill and of limits: those of UTC, written YYYY-MM."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from core.errors import InvalidArgument

FIRST_YEAR, LAST_YEAR = 1970, 9998  # there is a month before and after, in any time zone
_FORM = re.compile(r"(\d{4})-(0[1-9]|1[0-2])", re.ASCII)


def check_month(text: str) -> str:
    """Give a month that somebody wrote; raises InvalidArgument for what is none, and for one of years that no bill is of."""
    found = _FORM.fullmatch(text)
    if found is None or not FIRST_YEAR <= int(found[1]) <= LAST_YEAR:
        raise InvalidArgument(
            f"month must be written as 2026-01, from {FIRST_YEAR}-01 to {LAST_YEAR}-12, not {text[:64]!r}.",
            field="month",
        )
    return text


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
