"""A project's statement of one month: all of its figures, for whoever shows them. Reading changes nothing.

It is the report of the month's hours, by day and by cache, and what the ledger alone knows: at which prices, with which
corrections, and which of it is billed in the month.
"""

from calendar import monthrange
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum

from sqlalchemy.orm import Session

from billing.months import check_month
from billing.periods import Bucket, Period
from billing.priced_lines import PricedLine, priced_lines
from billing.report import Query, Report, Subject, Sums, report
from core.errors import LedgerConflict
from models.billing_period import PeriodState, list_periods
from models.cache import find_cache
from models.ledger_entry import LedgerEntry
from models.ledger_hour import NO_CACHE
from models.ledger_month import (
    list_corrections_of_month,
    sum_billed_elsewhere,
    sum_credit_used,
    sum_of_other_hours,
)
from models.project import Project

TOP_CACHES = 10


class MonthState(StrEnum):
    TO_COME = "has not begun"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Billed:
    """How a month's charges lead to what is billed in it, in nano-USD.

    elsewhere: of the month's charges, what is billed in later months, for it was closed when they were posted.
    other_hours: what is billed in the month for hours of earlier ones, likewise. credit: what was paid with credit.
    """

    charges: int
    elsewhere: int
    other_hours: int
    credit: int

    @property
    def amount_nano_usd(self) -> int:
        return self.charges - self.elsewhere + self.other_hours


@dataclass(frozen=True, slots=True)
class Statement:
    """period: the hours of the month in the zone. state, closed_at: of the month of UTC, which is what is closed.

    days: each of the month, with or without charges. caches: by id, the dearest first; `names` has those of the first few that
    still live and have one. billed: None in a zone whose month has other hours than the one that is billed.
    """

    project: Project
    month: str
    state: MonthState
    closed_at: datetime | None
    total: Report
    prices: Sequence[PricedLine]
    days: Mapping[date, Sums]
    caches: Mapping[str, Sums]
    without_cache: Sums
    names: Mapping[str, str]
    corrections: Sequence[LedgerEntry]
    billed: Billed | None

    @property
    def sums(self) -> Sums:
        return self.total.total

    @property
    def zone(self) -> tzinfo:
        return self.total.query.zone

    @property
    def as_of(self) -> datetime:
        return self.total.as_of

    @property
    def days_so_far(self) -> list[date]:
        """The first days of the month, up to the present one; more where later ones have charges."""
        today = self.as_of.astimezone(self.zone).date()
        begun = [day for day, sums in self.days.items() if day <= today or sums.amount_nano_usd]
        return [day for day in self.days if begun and day <= begun[-1]]


def statement(session: Session, project: Project, month: str, zone: tzinfo, now: datetime) -> Statement:
    """Make a project's statement of a month, YYYY-MM in a time zone, as of now.

    Raises InvalidArgument for what is no month, and LedgerConflict rather than give figures that do not agree.
    """
    period = month_period(month, zone)
    by_day = report(session, Query(period, project.id, bucket=Bucket.DAY, zone=zone), now)
    by_cache = report(session, Query(period, project.id, (Subject.CACHE,)), now)
    prices = priced_lines(session, project.id, period, now)
    _check_agrees(by_day.total, prices)
    is_billed_month = period == month_period(month, UTC)
    state, closed_at = _state(session, month, period, now)
    caches = _dearest_first(by_cache)
    return Statement(
        project=project,
        month=month,
        state=state,
        closed_at=closed_at,
        total=by_day,
        prices=prices,
        days={day: by_day.groups.get((f"{day}",), Sums()) for day in days_of(month)},
        caches=caches,
        without_cache=by_cache.groups.get((NO_CACHE,), Sums()),
        names=_names(session, project.id, list(caches)[:TOP_CACHES]),
        corrections=list_corrections_of_month(
            session, project.id, month if is_billed_month else None, period.start, period.end
        ),
        billed=_billed(session, project.id, month, period, by_day.total) if is_billed_month else None,
    )


def month_period(month: str, zone: tzinfo) -> Period:
    """Give the hours of a month, YYYY-MM, in a time zone."""
    days = days_of(check_month(month))
    first, next_first = (
        datetime.combine(day, time(), zone).astimezone(UTC) for day in (days[0], days[-1] + timedelta(days=1))
    )
    return Period(first, next_first)


def days_of(month: str) -> list[date]:
    year, number = map(int, month.split("-"))
    return [date(year, number, day) for day in range(1, monthrange(year, number)[1] + 1)]


def add_up(many: Iterable[Sums]) -> Sums:
    """Sum up sums, meter by meter."""
    total = Sums()
    for sums in many:
        total.provisional_nano_usd += sums.provisional_nano_usd
        for meter, line in sums.lines.items():
            total.lines[meter].add(
                line.quantity, line.amount_nano_usd, line.without_cache_nano_usd, line.entry_count
            )
    return total


def _dearest_first(by_cache: Report) -> dict[str, Sums]:
    caches = [(cache_id, sums) for (cache_id,), sums in by_cache.groups.items() if cache_id != NO_CACHE]
    return dict(sorted(caches, key=lambda each: (-each[1].amount_nano_usd, each[0])))


def _names(session: Session, project_id: str, cache_ids: Iterable[str]) -> dict[str, str]:
    found = [find_cache(session, project_id, cache_id) for cache_id in cache_ids]
    return {cache.id: cache.display_name for cache in found if cache is not None and cache.display_name}


def _state(session: Session, month: str, period: Period, now: datetime) -> tuple[MonthState, datetime | None]:
    for each in list_periods(session):
        if each.month == month and each.state == PeriodState.CLOSED:
            return MonthState.CLOSED, each.closed_at
    return MonthState.TO_COME if now < period.start else MonthState.OPEN, None


def _billed(session: Session, project_id: str, month: str, period: Period, total: Sums) -> Billed:
    where = session, project_id, month, period.start, period.end
    return Billed(
        charges=total.amount_nano_usd,
        elsewhere=sum_billed_elsewhere(*where),
        other_hours=sum_of_other_hours(*where),
        credit=sum_credit_used(session, project_id, month),
    )


def _check_agrees(total: Sums, prices: Sequence[PricedLine]) -> None:
    """The report reads the hours, the prices come from the entries: both are the same charges, or something is badly wrong."""
    for meter, line in total.lines.items():
        lines = [each for each in prices if each.meter is meter]
        found = sum(each.quantity for each in lines), sum(each.amount_nano_usd for each in lines)
        if found != (line.quantity, line.amount_nano_usd):
            raise LedgerConflict(
                f"The entries of {meter} come to {found[0]} for {found[1]} nano-USD, and the hours to {line.quantity} for "
                f"{line.amount_nano_usd}. No statement was made. Run `headstart billing verify`."
            )
