"""The ledger rolled up by the hour: what reports read. It is derived, and can be made anew from the entries at any time.

Entries up to a watermark are in it; a report adds the few that came after.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Index, RowMapping, Select, cast, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TO_CHANGE, Base, UtcDateTime
from models.insertion import insert_or_add, insert_unless_there
from models.ledger_entry import EntryKind, LedgerEntry

NO_CACHE = ""


class LedgerHour(Base):
    """What one key of a project was charged for one meter, model and cache in one hour; cache_id "": without a cache."""

    __tablename__ = "ledger_hours"
    __table_args__ = (Index(None, "project_id", "hour"),)

    hour: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    project_id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    cache_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    meter: Mapped[str] = mapped_column(primary_key=True)
    quantity: Mapped[int] = mapped_column(BigInteger)
    amount_nano_usd: Mapped[int] = mapped_column(BigInteger)
    without_cache_nano_usd: Mapped[int] = mapped_column(BigInteger)
    entry_count: Mapped[int] = mapped_column(BigInteger)


class LedgerWatermark(Base):
    """One row: up to which entry the hours are rolled up."""

    __tablename__ = "ledger_watermark"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    entry_id: Mapped[int] = mapped_column(BigInteger)


GRAIN = ("hour", "project_id", "key_id", "cache_id", "model", "meter")
SUMS = ("quantity", "amount_nano_usd", "without_cache_nano_usd")


def hours_of_entries(first_id: int, last_id: int | None) -> Select[Any]:
    """Roll up the charges after one entry and up to another, as rows of LedgerHour."""
    columns = {name: getattr(LedgerEntry, name) for name in GRAIN}
    columns["cache_id"] = func.coalesce(LedgerEntry.cache_id, NO_CACHE)
    query = select(
        *(column.label(name) for name, column in columns.items()),
        *(cast(func.sum(getattr(LedgerEntry, name)), BigInteger).label(name) for name in SUMS),
        # A correction of an entry is no further request.
        func.count().filter(LedgerEntry.corrects_id.is_(None)).label("entry_count"),
    ).where(LedgerEntry.id > first_id, LedgerEntry.kind.in_([EntryKind.USAGE, EntryKind.CORRECTION]))
    if last_id is not None:
        query = query.where(LedgerEntry.id <= last_id)
    return query.group_by(*columns.values())


def watermark(session: Session) -> int:
    return session.scalars(select(LedgerWatermark.entry_id)).one_or_none() or 0


def roll_up(session: Session, last_id: int) -> None:
    """Add the entries after the watermark and up to `last_id`, which is settled, to their hours, each once."""
    mark = _lock_watermark(session)
    if mark is None:  # the first time; somebody else may be at it too
        insert_unless_there(session, LedgerWatermark, [{"id": 1, "entry_id": 0}], ["id"])
        mark = _lock_watermark(session)
        assert mark is not None
    if last_id > mark.entry_id:
        insert_or_add(session, LedgerHour, hours_of_entries(mark.entry_id, last_id), (*SUMS, "entry_count"))
        mark.entry_id = last_id
        session.flush()


def _lock_watermark(session: Session) -> LedgerWatermark | None:
    return session.get(LedgerWatermark, 1, with_for_update=TO_CHANGE, populate_existing=True)


def forget_hours(session: Session) -> None:
    """Remove what was rolled up, to make it anew."""
    session.execute(delete(LedgerHour))
    session.execute(delete(LedgerWatermark))


def sum_charges(
    session: Session,
    by: Sequence[str],
    start: datetime,
    end: datetime,
    project_id: str | None,
    most_rows: int | None = None,
) -> Iterator[RowMapping]:
    """Sum what was charged for the hours that start in [start, end), of one project or, with None, of all.

    by: columns of GRAIN but the meter, which is always one. The same group can come twice: as it is rolled up, and from the
    entries after the watermark. most_rows: give no more of each kind; None: give all.
    """
    recent = hours_of_entries(watermark(session), None).where(
        LedgerEntry.hour >= start, LedgerEntry.hour < end
    )
    rolled = select(LedgerHour).where(LedgerHour.hour >= start, LedgerHour.hour < end)
    if project_id is not None:
        recent = recent.where(LedgerEntry.project_id == project_id)
        rolled = rolled.where(LedgerHour.project_id == project_id)
    for rows in (rolled.subquery(), recent.subquery()):
        group = [rows.c[name] for name in (*by, "meter")]
        sums = [cast(func.sum(rows.c[name]), BigInteger).label(name) for name in (*SUMS, "entry_count")]
        yield from session.execute(select(*group, *sums).group_by(*group).limit(most_rows)).mappings()
