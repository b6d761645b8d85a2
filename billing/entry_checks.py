"""What must hold of the entries of the ledger themselves, each as queries that find what breaks it. None changes anything."""

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.months import end_of, month_of
from models.billing_period import BillingPeriod, PeriodState
from models.ledger_entry import CHARGES, Account, EntryKind, LedgerEntry, sum_of_period

_ACCOUNTS = (
    (CHARGES, Account.RECEIVABLE, Account.REVENUE),
    ((EntryKind.GRANT,), Account.GRANTED, Account.CREDIT),
    ((EntryKind.CREDIT_USE,), Account.CREDIT, Account.RECEIVABLE),
)


def no_entry_is_missing(session: Session) -> Iterator[str]:
    """SQLite numbers entries without a gap. PostgreSQL leaves one wherever a unit is rolled back, and proves nothing."""
    if session.get_bind().dialect.name != "sqlite":
        return
    count, newest = session.execute(select(func.count(LedgerEntry.id), func.max(LedgerEntry.id))).one()
    if count != (newest or 0):
        yield f"the newest entry is {newest}, and there are {count}"


def meters_are_known(session: Session) -> Iterator[str]:
    query = select(LedgerEntry.id).where(LedgerEntry.meter.is_not(None), LedgerEntry.meter.not_in([*Meter]))
    for entry_id in session.scalars(query):
        yield f"ledger entry {entry_id}: its meter is unknown"


def accounts_are_of_their_kind(session: Session) -> Iterator[str]:
    is_right = or_(
        *(
            and_(LedgerEntry.kind.in_(kinds), LedgerEntry.debit == debit, LedgerEntry.credit == credit)
            for kinds, debit, credit in _ACCOUNTS
        )
    )
    for entry_id in session.scalars(select(LedgerEntry.id).where(~is_right)):
        yield f"ledger entry {entry_id}: its kind moves nothing between these accounts"


def closed_periods_are_sums(session: Session) -> Iterator[str]:
    for period in session.scalars(select(BillingPeriod).where(BillingPeriod.state == PeriodState.CLOSED)):
        amount = sum_of_period(session, period.month)
        if amount != period.amount_nano_usd:
            yield f"{period.month}: closed at {period.amount_nano_usd} nano-USD, and its entries come to {amount}"


def entries_are_billed_in_their_month(session: Session) -> Iterator[str]:
    """Usage is billed in the month of its hour. All else is in the first month that was open when it was posted, and usage
    is so only where the month of its hour is closed.
    """
    states = {each.month: each.state for each in session.scalars(select(BillingPeriod))}
    closed = {month for month, state in states.items() if state == PeriodState.CLOSED}
    usage = select(func.min(LedgerEntry.id), LedgerEntry.hour, LedgerEntry.period)
    usage = usage.where(LedgerEntry.kind == EntryKind.USAGE).group_by(LedgerEntry.hour, LedgerEntry.period)
    for entry_id, hour, period in session.execute(usage):
        if period != month_of(hour) or period not in states:
            yield f"ledger entry {entry_id}: it is of {month_of(hour)}, and billed in {period}"
    others = select(
        LedgerEntry.id, LedgerEntry.kind, LedgerEntry.corrects_id, LedgerEntry.hour, LedgerEntry.period
    ).add_columns(LedgerEntry.posted_at)
    others = others.where(LedgerEntry.kind.in_([EntryKind.CORRECTION, EntryKind.GRANT]))
    for entry_id, kind, corrects_id, hour, period, posted_at in session.execute(others):
        if period not in states or not was_first_open(period, posted_at, closed):
            yield f"ledger entry {entry_id}: it was posted in {month_of(posted_at)}, and is billed in {period}"
        if kind == EntryKind.CORRECTION and corrects_id is None and month_of(hour) not in closed:
            yield f"ledger entry {entry_id}: it came late for {month_of(hour)}, which is not closed"


def was_first_open(period: str, posted_at: datetime, closed: set[str]) -> bool:
    """Whether a month is that in which something was posted, or all from that one on until it are closed: for ever."""
    month = month_of(posted_at)
    while month < period and month in closed:
        month = month_of(end_of(month))
    return month == period
