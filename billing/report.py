"""The bill of a period, grouped as one likes: by project, key, cache, model, and by hour, day or month of any time zone.

It is read from the ledger, and adds what storage has come to owe since it was last posted. Reading changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from billing.charges import Charge, storage_charges
from billing.meters import READ_METERS, Meter
from billing.periods import Bucket, Period, bucket_of, has_cut_end, is_within_hour
from billing.prices import load_prices
from billing.rating import HOUR, whole_hour
from core.errors import InvalidArgument
from models.ledger_hour import NO_CACHE, sum_charges
from models.storage_segment import list_segments_beyond_ledger


class Subject(StrEnum):
    """What a report can be grouped by, beside time."""

    PROJECT = "project"
    KEY = "key"
    CACHE = "cache"
    MODEL = "model"


_COLUMNS = {
    Subject.PROJECT: "project_id",
    Subject.KEY: "key_id",
    Subject.CACHE: "cache_id",
    Subject.MODEL: "model",
}


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for. project_id: None: all. bucket: how time is cut, None: not at all."""

    period: Period
    project_id: str | None = None
    subjects: tuple[Subject, ...] = ()
    bucket: Bucket | None = None
    zone: tzinfo = UTC


@dataclass(slots=True)
class Line:
    """What was consumed of one meter, and what it costs.

    without_cache_nano_usd: what the same would have cost had nothing been cached. entry_count: for reads, the hits.
    """

    quantity: int = 0
    amount_nano_usd: int = 0
    without_cache_nano_usd: int = 0
    entry_count: int = 0

    def add(self, quantity: int, amount_nano_usd: int, without_cache_nano_usd: int, entry_count: int) -> None:
        self.quantity += quantity
        self.amount_nano_usd += amount_nano_usd
        self.without_cache_nano_usd += without_cache_nano_usd
        self.entry_count += entry_count


class Sums:
    """A line for every meter, in the order of Meter, and what follows from them.

    provisional_nano_usd: how much of the amount is storage that is not posted yet.
    """

    def __init__(self) -> None:
        self.lines = {meter: Line() for meter in Meter}
        self.provisional_nano_usd = 0

    @property
    def amount_nano_usd(self) -> int:
        return sum(line.amount_nano_usd for line in self.lines.values())

    @property
    def without_cache_nano_usd(self) -> int:
        return sum(line.without_cache_nano_usd for line in self.lines.values())

    @property
    def saved_nano_usd(self) -> int:
        """What caching saved; negative where it cost more than it saved."""
        return self.without_cache_nano_usd - self.amount_nano_usd

    @property
    def hits(self) -> int:
        """Requests that were answered from the cache that they named."""
        return self.lines[Meter.CACHE_READ_TOKENS].entry_count

    @property
    def hit_rate(self) -> float | None:
        """Tokens of prompts that were read, of all; None where there was no prompt."""
        read = sum(self.lines[meter].quantity for meter in READ_METERS)
        prompt = read + self.lines[Meter.INPUT_TOKENS].quantity
        return read / prompt if prompt else None


Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """groups: by the values of the query's bucket, if any, and of its subjects, in that order; sorted. An empty cache is none.

    as_of: caches that live are charged up to this instant, where it comes before the period's end. cuts_hours: whether an hour
    that counts here, or at an end of the period, lies in two days of the zone.
    """

    query: Query
    as_of: datetime
    groups: Mapping[Group, Sums]
    total: Sums
    cuts_hours: bool

    @property
    def notes(self) -> list[str]:
        """What somebody has to know to read the report rightly."""
        notes = []
        if self.cuts_hours:
            notes.append(
                f"{self.query.zone} does not lie whole hours from UTC: an hour counts in the day in which it starts."
            )
        if self.total.provisional_nano_usd:
            notes.append(
                f"{self.total.provisional_nano_usd} nano-USD are storage that is not posted yet; a server posts it when its hour is over."
            )
        return notes


def report(session: Session, query: Query, now: datetime, most_rows: int | None = None) -> Report:
    """Bill the hours that start in a period. Raises PriceMissing rather than charge nothing.

    most_rows: how much may be read, as sums of a meter in a group, in each hour where time is cut. Raises InvalidArgument rather
    than read more; None: reads all.
    """
    groups: dict[Group, Sums] = {}
    total = Sums()
    buckets = _Buckets(query)

    def sums_of(place: Mapping[str, Any]) -> tuple[Sums, Sums]:
        group = buckets.group(place)
        if group not in groups:
            groups[group] = Sums()
        return groups[group], total

    for place, meter, figures in _posted(session, query, most_rows):
        for sums in sums_of(place):
            sums.lines[meter].add(*figures)
    for place, meter, figures in _not_posted(session, query, now):
        for sums in sums_of(place):
            sums.lines[meter].add(*figures)
            sums.provisional_nano_usd += figures[1]
    cuts_hours = buckets.cut_hours or has_cut_end(query.period, query.zone)
    return Report(query, now, dict(sorted(groups.items())), total, cuts_hours)


class _Buckets:
    """Groups of a query; each hour is put into its bucket once, however many rows it has.

    cut_hours: whether one of them lies in two days of the zone.
    """

    def __init__(self, query: Query) -> None:
        self.cut_hours = False
        self._query = query
        self._columns = [_COLUMNS[subject] for subject in query.subjects]
        self._names: dict[datetime, str] = {}

    def group(self, place: Mapping[str, Any]) -> Group:
        subjects: Iterable[str] = (place[column] for column in self._columns)
        return tuple(subjects) if self._query.bucket is None else (self._name(place["hour"]), *subjects)

    def _name(self, hour: datetime) -> str:
        if hour not in self._names:
            assert self._query.bucket is not None
            self._names[hour] = bucket_of(hour, self._query.bucket, self._query.zone)
            self.cut_hours = self.cut_hours or is_within_hour(hour, self._query.zone)
        return self._names[hour]


Charged = Iterator[tuple[Mapping[str, Any], Meter, tuple[int, int, int, int]]]


def _posted(session: Session, query: Query, most_rows: int | None) -> Charged:
    by = [_COLUMNS[subject] for subject in query.subjects]
    if query.bucket is not None:
        by.append("hour")
    period = query.period
    limit = None if most_rows is None else most_rows + 1
    rows = sum_charges(session, by, period.start, period.end, query.project_id, limit)
    for count, row in enumerate(rows):
        if count == most_rows:
            raise InvalidArgument(
                f"This period has more than {most_rows} sums of its groups: ask for shorter periods, or group by less.",
                field="start",
            )
        sums = row["quantity"], row["amount_nano_usd"], row["without_cache_nano_usd"], row["entry_count"]
        yield dict(row), Meter(row["meter"]), sums


def unposted_storage(
    session: Session, period: Period, project_id: str | None, now: datetime
) -> Iterator[Charge]:
    """Charge what has been kept since the last whole hour, or since it could last be posted."""
    end = min(whole_hour(period.end) + HOUR, now)  # an hour that starts in the period counts whole
    segments = list_segments_beyond_ledger(session, period.start, end, project_id)
    if not segments:
        return
    prices = load_prices(session)
    for segment in segments:
        for charge in storage_charges(segment, segment.accrued_until, now, prices):
            if period.start <= charge.hour < period.end:
                yield charge


def _not_posted(session: Session, query: Query, now: datetime) -> Charged:
    for charge in unposted_storage(session, query.period, query.project_id, now):
        place = {name: getattr(charge, name) or NO_CACHE for name in _COLUMNS.values()}
        figures = charge.quantity, charge.amount_nano_usd, charge.without_cache_nano_usd, 0
        yield place | {"hour": charge.hour}, charge.meter, figures
