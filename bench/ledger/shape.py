"""What a generated month looks like: October 2026, in a database on PostgreSQL."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MONTH = datetime(2026, 10, 1, tzinfo=UTC)
MONTH_END = datetime(2026, 11, 1, tzinfo=UTC)
NOW = MONTH_END + timedelta(minutes=10)
SECONDS = int((MONTH_END - MONTH).total_seconds())
PROJECTS, KEYS = 50, 4  # of each project
MODEL = "smollm2-135m-instruct"
# Of a month of these caches about a fifth of all rows is storage, and the rest are requests: 17 in 20 name a cache.
_ROWS_A_CACHE = 100
_STORAGE_AND_WRITE_A_CACHE = 20
_ROWS_A_REQUEST = 2.93


@dataclass(frozen=True, slots=True)
class Shape:
    """caches: over the month. requests: with and without a cache; each is two to four rows."""

    caches: int
    requests: int


def shape_of(rows: int) -> Shape:
    """A month of about so many ledger rows."""
    caches = max(PROJECTS, rows // _ROWS_A_CACHE)
    return Shape(caches, max(1, int((rows - caches * _STORAGE_AND_WRITE_A_CACHE) / _ROWS_A_REQUEST)))
