"""What the ledger knows of a project's month beyond its hours: which prices made it, what was corrected, where it is billed."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import BigInteger, ColumnElement, RowMapping, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from models.ledger_entry import EntryKind, LedgerEntry

_IS_CHARGE = LedgerEntry.kind.in_([EntryKind.USAGE, EntryKind.CORRECTION])


def sum_by_price(session: Session, project_id: str, start: datetime, end: datetime) -> Sequence[RowMapping]:
    """Sum the charges for the hours that start in [start, end) by meter, model and price."""
    by = LedgerEntry.meter, LedgerEntry.model, LedgerEntry.price_id
    sums = [
        cast(func.sum(column), BigInteger).label(column.key)
        for column in (LedgerEntry.quantity, LedgerEntry.amount_nano_usd)
    ]
    query = select(*by, *sums).where(_IS_CHARGE, _occurred(project_id, start, end)).group_by(*by)
    return session.execute(query).mappings().all()


def sum_billed_elsewhere(
    session: Session, project_id: str, month: str, start: datetime, end: datetime
) -> int:
    """What the charges for the hours of [start, end) come to that are billed in another month."""
    return _sum(session, _IS_CHARGE, _occurred(project_id, start, end), LedgerEntry.period != month)


def sum_of_other_hours(session: Session, project_id: str, month: str, start: datetime, end: datetime) -> int:
    """What the charges billed in a month come to that are for hours outside of [start, end)."""
    return _sum(session, _IS_CHARGE, _billed(project_id, month), ~_in_hours(start, end))


def sum_credit_used(session: Session, project_id: str, month: str) -> int:
    """What of a month was paid with credit."""
    return _sum(session, LedgerEntry.kind == EntryKind.CREDIT_USE, _billed(project_id, month))


def list_corrections_of_month(
    session: Session, project_id: str, month: str | None, start: datetime, end: datetime
) -> Sequence[LedgerEntry]:
    """List the corrections for the hours of [start, end) and, with a month, those that are billed in it; the oldest first."""
    concerned = _occurred(project_id, start, end)
    if month is not None:
        concerned = or_(concerned, _billed(project_id, month))
    return session.scalars(
        select(LedgerEntry)
        .where(LedgerEntry.kind == EntryKind.CORRECTION, concerned)
        .order_by(LedgerEntry.id)
    ).all()


def _in_hours(start: datetime, end: datetime) -> ColumnElement[bool]:
    return and_(LedgerEntry.hour >= start, LedgerEntry.hour < end)


def _occurred(project_id: str, start: datetime, end: datetime) -> ColumnElement[bool]:
    return and_(LedgerEntry.project_id == project_id, _in_hours(start, end))


def _billed(project_id: str, month: str) -> ColumnElement[bool]:
    return and_(LedgerEntry.project_id == project_id, LedgerEntry.period == month)


def _sum(session: Session, *conditions: ColumnElement[bool]) -> int:
    total = cast(func.coalesce(func.sum(LedgerEntry.amount_nano_usd), 0), BigInteger)
    return session.scalars(select(total).where(*conditions)).one()
