"""The bill of a period: what each project owes, by cache and by meter, rated from the rows as they stand.

It is derived on every call and stored nowhere. Reading changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from billing.charges import Charge, storage_charges, usage_charges
from billing.meters import Meter
from billing.periods import Period
from billing.prices import load_prices
from models.storage_segment import list_segments
from models.usage import list_final


@dataclass(frozen=True, slots=True)
class Line:
    """What was consumed of one meter, and what it costs.

    implicit_quantity: of tokens read, those for which no cache was named; the others are explicit.
    """

    meter: Meter
    quantity: int
    amount_nano_usd: int
    implicit_quantity: int = 0


@dataclass(frozen=True, slots=True)
class CacheBill:
    """What was spent on one cache; cache_id None: on generations without one."""

    cache_id: str | None
    lines: tuple[Line, ...]
    amount_nano_usd: int


@dataclass(frozen=True, slots=True)
class ProjectBill:
    project_id: str
    caches: tuple[CacheBill, ...]
    lines: tuple[Line, ...]
    amount_nano_usd: int


@dataclass(frozen=True, slots=True)
class Report:
    """`lines` holds every meter once, in the order of Meter, here and on each level below.

    as_of: caches that live are charged up to this instant, where it comes before the period's end.
    """

    start: datetime
    end: datetime
    as_of: datetime
    projects: tuple[ProjectBill, ...]
    lines: tuple[Line, ...]
    amount_nano_usd: int


def report(
    session: Session, *, start: datetime, end: datetime, now: datetime, project_id: str | None = None
) -> Report:
    """Make the bill for [start, end) of one project, or of all. Raises PriceMissing rather than charge nothing."""
    period = Period(start, end)
    prices = load_prices(session)
    charges = [
        charge
        for row in list_final(session, period.start, period.end, project_id)
        for charge in usage_charges(row, prices)
    ]
    accrued = Period(start, max(start, min(end, now)))
    charges += [
        charge
        for segment in list_segments(session, accrued.start, accrued.end, project_id)
        for charge in storage_charges(segment, accrued, prices)
    ]
    by_project: dict[str, list[Charge]] = defaultdict(list)
    for charge in charges:
        by_project[charge.project_id].append(charge)
    return Report(
        start=start,
        end=end,
        as_of=now,
        projects=tuple(_project_bill(each, by_project[each]) for each in sorted(by_project)),
        lines=_lines(charges),
        amount_nano_usd=_sum(charges),
    )


def _project_bill(project_id: str, charges: list[Charge]) -> ProjectBill:
    by_cache: dict[str | None, list[Charge]] = defaultdict(list)
    for charge in charges:
        by_cache[charge.cache_id].append(charge)
    order = sorted(by_cache, key=lambda cache_id: (cache_id is None, cache_id))
    return ProjectBill(
        project_id=project_id,
        caches=tuple(
            CacheBill(cache_id, _lines(by_cache[cache_id]), _sum(by_cache[cache_id])) for cache_id in order
        ),
        lines=_lines(charges),
        amount_nano_usd=_sum(charges),
    )


def _lines(charges: Iterable[Charge]) -> tuple[Line, ...]:
    quantities = dict.fromkeys(Meter, 0)
    amounts = dict.fromkeys(Meter, 0)
    implicit = dict.fromkeys(Meter, 0)
    for charge in charges:
        quantities[charge.meter] += charge.quantity
        amounts[charge.meter] += charge.amount_nano_usd
        implicit[charge.meter] += charge.implicit_quantity
    return tuple(Line(meter, quantities[meter], amounts[meter], implicit[meter]) for meter in Meter)


def _sum(charges: Iterable[Charge]) -> int:
    return sum(charge.amount_nano_usd for charge in charges)
