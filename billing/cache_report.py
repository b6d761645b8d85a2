"""What each cache of a period has cost and what its hits have saved; those that lost most come first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from sqlalchemy.orm import Session

from billing.break_even import hits_per_hour_to_keep
from billing.meters import CREATE_METERS, Meter
from billing.prices import load_prices
from billing.rating import HOUR
from billing.report import Query, Report, Subject, Sums, report
from billing.timelines import Prices
from models.storage_segment import StorageSegment, find_segments

SUBJECTS = (Subject.PROJECT, Subject.CACHE)
_AT_ONCE = 1_000  # a query takes only so many values
Position = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class CacheSums:
    """A cache, and what is charged in the period for it and for the requests that named it."""

    project_id: str
    cache_id: str
    sums: Sums

    @property
    def cost_nano_usd(self) -> int:
        """Of writing it and of keeping it."""
        return sum(self.sums.lines[meter].amount_nano_usd for meter in CREATE_METERS)

    @property
    def hits_saved_nano_usd(self) -> int:
        """What its tokens would have cost in the requests that read them from it, less what reading cost."""
        read = self.sums.lines[Meter.CACHE_READ_TOKENS]
        return read.without_cache_nano_usd - read.amount_nano_usd

    @property
    def net_nano_usd(self) -> int:
        """What it saved in all; negative where it cost more than that."""
        return self.hits_saved_nano_usd - self.cost_nano_usd

    @property
    def position(self) -> Position:
        """Where it stands in the list."""
        return self.net_nano_usd, self.project_id, self.cache_id


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """kept_seconds: of the period, as storage is billed. hits_per_hour: of those; None where there was no whole second.

    hits_per_hour_to_keep: how many pay for keeping it at the prices of now; None where no number does.
    """

    line: CacheSums
    model: str
    token_count: int
    kept_seconds: int
    hits_per_hour: Fraction | None
    hits_per_hour_to_keep: Fraction | None


@dataclass(frozen=True, slots=True)
class CacheReport:
    """whole: the report that it was made of, without grouping its total. lines: all caches, the greatest loss first."""

    whole: Report
    lines: Sequence[CacheSums]

    @property
    def losing(self) -> Sequence[CacheSums]:
        return [line for line in self.lines if line.net_nano_usd < 0]


def cache_report(session: Session, query: Query, now: datetime, most_rows: int | None = None) -> CacheReport:
    """Make the report of a query that groups by SUBJECTS; caches of which nothing was charged in it are not in it.

    Raises what a report does; most_rows is as there.
    """
    assert query.subjects == SUBJECTS
    whole = report(session, query, now, most_rows)
    lines = [
        CacheSums(project_id, cache_id, sums)
        for (project_id, cache_id), sums in whole.groups.items()
        if cache_id
    ]
    return CacheReport(whole, sorted(lines, key=lambda line: line.position))


def cache_figures(session: Session, lines: Sequence[CacheSums], now: datetime) -> Iterator[CacheFigures]:
    """Look up the rest of what is shown of each cache. Raises PriceMissing."""
    prices = load_prices(session)
    for first in range(0, len(lines), _AT_ONCE):
        some = lines[first : first + _AT_ONCE]
        segments = {each.cache_id: each for each in find_segments(session, [line.cache_id for line in some])}
        for line in some:
            yield _figures(line, segments[line.cache_id], prices, now)


def _figures(line: CacheSums, segment: StorageSegment, prices: Prices, now: datetime) -> CacheFigures:
    kept = line.sums.lines[Meter.CACHE_STORAGE_TOKEN_SECONDS].quantity // segment.token_count
    return CacheFigures(
        line=line,
        model=segment.model,
        token_count=segment.token_count,
        kept_seconds=kept,
        hits_per_hour=Fraction(line.sums.hits * HOUR.seconds, kept) if kept else None,
        hits_per_hour_to_keep=hits_per_hour_to_keep(prices, segment.project_id, segment.model, now),
    )
