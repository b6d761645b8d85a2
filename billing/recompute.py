"""The bill a second time, by other means, to prove the report: exact fractions over every row of the tables.

It shares no query, no price lookup and no arithmetic with `report`, and is slow: it exists to disagree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import floor

from sqlalchemy import select
from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.report import Report
from models.price import Price
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState

NO_CACHE = "no cache"

Place = tuple[str, str | None, Meter]  # project, cache or none, meter


@dataclass(frozen=True, slots=True)
class Totals:
    """Quantities and amounts by project, cache and meter; what is zero is absent.

    implicit_quantities: what of the quantities was read without a cache being named for it.
    """

    quantities: dict[Place, int]
    amounts_nano_usd: dict[Place, int]
    implicit_quantities: dict[Place, int] = field(default_factory=dict)


def recompute(
    session: Session, *, start: datetime, end: datetime, now: datetime, project_id: str | None = None
) -> Totals:
    """Bill [start, end) anew from the rows. Raises LookupError where a price is missing."""
    prices = session.scalars(select(Price)).all()
    quantities: Counter[Place] = Counter()
    amounts: Counter[Place] = Counter()
    implicit: Counter[Place] = Counter()
    for row in session.scalars(select(Usage)):
        if row.state != UsageState.FINAL or project_id not in (None, row.project_id):
            continue
        if row.occurred_at is None or not start <= row.occurred_at < end:
            continue
        for meter in set(Meter) - {Meter.CACHE_STORAGE_TOKEN_SECONDS}:
            tokens: int = getattr(row, meter)
            if tokens:
                place = row.project_id, row.cache_id, meter
                price = _price_at(prices, row.model, meter, row.occurred_at)
                quantities[place] += tokens
                amounts[place] += floor(Fraction(price.nano_usd_per_million, 10**6) * tokens)
        implicit[row.project_id, row.cache_id, Meter.CACHE_READ_TOKENS] += row.implicit_cache_tokens
    for segment in session.scalars(select(StorageSegment)):
        if project_id in (None, segment.project_id):
            place = segment.project_id, segment.cache_id, Meter.CACHE_STORAGE_TOKEN_SECONDS
            seconds, owed = _storage_by(segment, prices, max(start, min(end, now)))
            seconds_before, owed_before = _storage_by(segment, prices, start)
            quantities[place] += segment.token_count * (seconds - seconds_before)
            amounts[place] += owed - owed_before
    return Totals(dict(+quantities), dict(+amounts), dict(+implicit))


def compare(report: Report, recomputed: Totals) -> list[str]:
    """Name every figure in which a report, its totals included, differs from the recomputed bill."""
    return [
        *_compare("quantity", _figures(report, "quantity"), _with_totals(recomputed.quantities)),
        *_compare(
            "implicit quantity",
            _figures(report, "implicit_quantity"),
            _with_totals(recomputed.implicit_quantities),
        ),
        *_compare("nano-USD", _figures(report, "amount_nano_usd"), _with_totals(recomputed.amounts_nano_usd)),
        *_compare("sum in nano-USD", _sums(report), _expected_sums(recomputed.amounts_nano_usd)),
    ]


def _storage_by(segment: StorageSegment, prices: Sequence[Price], until: datetime) -> tuple[int, int]:
    """Seconds a segment has been kept by an instant, and what it has owed by then."""
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    first, last = _second(segment.started_at), min(_second(segment.ends_at), _second(until))
    if last <= first:
        return 0, 0
    changes = {each.effective_from for each in prices if first < each.effective_from < last}
    edges = [first, *sorted(changes), last]
    seconds: Counter[Price] = Counter()
    for edge, following in pairwise(edges):
        seconds[_price_at(prices, segment.model, meter, edge)] += int((following - edge).total_seconds())
    per_million_hours = Fraction(segment.token_count, 10**6 * 3600)
    owed = sum(
        floor(per_million_hours * kept * price.nano_usd_per_million) for price, kept in seconds.items()
    )
    return seconds.total(), owed


def _price_at(prices: Sequence[Price], model: str, meter: Meter, at: datetime) -> Price:
    for name in (model, "*"):
        held = [
            each for each in prices if (each.model, each.meter) == (name, meter) and each.effective_from <= at
        ]
        if held:
            return max(held, key=lambda each: each.effective_from)
    raise LookupError(f"no price of {meter} for {model} at {at}")


def _second(instant: datetime) -> datetime:
    return instant - timedelta(microseconds=instant.microsecond)


def _figures(report: Report, attribute: str) -> dict[tuple[str, ...], int]:
    """Each line of a report by what it is about: everything, a project, or a cache of it."""
    figures: dict[tuple[str, ...], int] = {}
    for project in report.projects:
        for cache in project.caches:
            for line in cache.lines:
                figures[project.project_id, cache.cache_id or NO_CACHE, line.meter] = getattr(line, attribute)
        for line in project.lines:
            figures[project.project_id, line.meter] = getattr(line, attribute)
    for line in report.lines:
        figures[(line.meter,)] = getattr(line, attribute)
    return figures


def _with_totals(values: dict[Place, int]) -> dict[tuple[str, ...], int]:
    totals: Counter[tuple[str, ...]] = Counter()
    for (project_id, cache_id, meter), value in values.items():
        for about in ((project_id, cache_id or NO_CACHE, meter), (project_id, meter), (meter,)):
            totals[about] += value
    return totals


def _sums(report: Report) -> dict[tuple[str, ...], int]:
    sums: dict[tuple[str, ...], int] = {(): report.amount_nano_usd}
    for project in report.projects:
        sums[(project.project_id,)] = project.amount_nano_usd
        for cache in project.caches:
            sums[project.project_id, cache.cache_id or NO_CACHE] = cache.amount_nano_usd
    return sums


def _expected_sums(amounts: dict[Place, int]) -> dict[tuple[str, ...], int]:
    sums: Counter[tuple[str, ...]] = Counter()
    for (project_id, cache_id, _), amount in amounts.items():
        for about in ((project_id, cache_id or NO_CACHE), (project_id,), ()):
            sums[about] += amount
    return sums


def _compare(
    what: str, reported: Mapping[tuple[str, ...], int], expected: Mapping[tuple[str, ...], int]
) -> list[str]:
    return [
        f"{' / '.join(about) or 'total'}: {what} {reported.get(about, 0)} reported, {expected.get(about, 0)} recomputed"
        for about in sorted(reported.keys() | expected.keys())
        if reported.get(about, 0) != expected.get(about, 0)
    ]
