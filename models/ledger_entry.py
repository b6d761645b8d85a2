"""The ledger: what was charged, granted and corrected, one immutable row each. It is appended to and never changed.

Each row moves an amount from one account to another, so that all accounts together sum to zero, always. The database refuses
to change or remove a row, whoever asks (migrations: the triggers).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    UniqueConstraint,
    and_,
    func,
    select,
    text,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TO_CHANGE, Base, UtcDateTime, enum_text, one_of
from models.guards import keep_rows
from models.insertion import insert_unless_there


class EntryKind(StrEnum):
    USAGE = "USAGE"  # what was metered
    CORRECTION = (
        "CORRECTION"  # what was metered in a month that had been closed, or the difference to another entry
    )
    GRANT = "GRANT"  # credit given
    CREDIT_USE = "CREDIT_USE"  # a charge paid with credit


class Account(StrEnum):
    """Of each project; together they sum to zero."""

    RECEIVABLE = "RECEIVABLE"  # what the project owes
    REVENUE = "REVENUE"
    CREDIT = "CREDIT"  # what was given to the project and is not used yet
    GRANTED = "GRANTED"


CHARGES = (EntryKind.USAGE, EntryKind.CORRECTION)
_CHARGE = "kind IN ('USAGE', 'CORRECTION')"
_ENTRY_ID = BigInteger().with_variant(Integer, "sqlite")  # the only type for which SQLite counts by itself


class LedgerEntry(Base):
    __tablename__ = "ledger_entries"
    __table_args__ = (
        UniqueConstraint("project_id", "dedupe_key"),
        UniqueConstraint("project_id", "id"),  # what a correction refers to: never another project's
        ForeignKeyConstraint(["project_id", "cache_id"], ["caches.project_id", "caches.id"]),
        ForeignKeyConstraint(
            ["project_id", "corrects_id"], ["ledger_entries.project_id", "ledger_entries.id"]
        ),
        CheckConstraint(one_of("kind", EntryKind), name="kind_known"),
        CheckConstraint(
            f"({_CHARGE} AND debit = 'RECEIVABLE' AND credit = 'REVENUE') OR "
            "(kind = 'GRANT' AND debit = 'GRANTED' AND credit = 'CREDIT') OR "
            "(kind = 'CREDIT_USE' AND debit = 'CREDIT' AND credit = 'RECEIVABLE')",
            name="accounts_by_kind",
        ),
        CheckConstraint(
            f"({_CHARGE}) = (meter IS NOT NULL) AND ({_CHARGE}) = (price_id IS NOT NULL) AND "
            f"({_CHARGE}) = (key_id IS NOT NULL) AND ({_CHARGE}) = (model IS NOT NULL)",
            name="charge_is_metered",
        ),
        CheckConstraint(
            "corrects_id IS NULL OR kind IN ('CORRECTION', 'CREDIT_USE')", name="corrects_when_correction"
        ),
        CheckConstraint(
            "corrects_id IS NOT NULL OR (quantity >= 0 AND amount_nano_usd >= 0 AND without_cache_nano_usd >= 0)",
            name="negative_when_correcting",
        ),
        Index(None, "project_id", "hour"),
        Index(None, "period", "project_id"),
        Index(
            "ix_ledger_entries_corrects_id",
            "corrects_id",
            sqlite_where=text("corrects_id IS NOT NULL"),
            postgresql_where=text("corrects_id IS NOT NULL"),
        ),
        Index(
            "ix_ledger_entries_limit_month",
            "limit_month",
            sqlite_where=text("limit_month IS NOT NULL"),
            postgresql_where=text("limit_month IS NOT NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(_ENTRY_ID, primary_key=True, autoincrement=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    dedupe_key: Mapped[str]  # made of the facts: the same event has the same key, however often it is posted
    kind: Mapped[EntryKind] = mapped_column(enum_text(EntryKind))
    debit: Mapped[Account] = mapped_column(enum_text(Account))
    credit: Mapped[Account] = mapped_column(enum_text(Account))
    meter: Mapped[str | None]
    price_id: Mapped[int | None] = mapped_column(ForeignKey("prices.id"))
    corrects_id: Mapped[int | None] = mapped_column(_ENTRY_ID)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    cache_id: Mapped[str | None]
    model: Mapped[str | None]
    hour: Mapped[datetime] = mapped_column(UtcDateTime)  # in which it occurred
    # In which it is billed; there is a row of it, which is held while this one is appended.
    period: Mapped[str]
    # Against whose limits it counts, where that is another month: a request counts where it was accepted.
    limit_month: Mapped[str | None]
    quantity: Mapped[int] = mapped_column(BigInteger)
    amount_nano_usd: Mapped[int] = mapped_column(BigInteger)
    without_cache_nano_usd: Mapped[int] = mapped_column(
        BigInteger
    )  # what it would have cost without any cache
    posted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    note: Mapped[str | None]  # why, in an operator's words


keep_rows(LedgerEntry, numbered="id")

# What an entry need not say.
_LEFT_OUT: dict[str, Any] = {
    **{column.name: None for column in LedgerEntry.__table__.columns if column.nullable},
    "quantity": 0,
    "without_cache_nano_usd": 0,
}


def new_entry(**facts: Any) -> dict[str, Any]:
    """All columns of an entry that is to be appended; what is left out is empty, or 0."""
    return _LEFT_OUT | facts


def insert_new(session: Session, entries: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Append the entries whose dedupe keys are new in their projects; gives (project, dedupe key) of those."""
    appended = insert_unless_there(session, LedgerEntry, entries, ["project_id", "dedupe_key"])
    return {(row.project_id, row.dedupe_key) for row in appended}


def find_entries(session: Session, project_id: str, dedupe_keys: Iterable[str]) -> Sequence[LedgerEntry]:
    return session.scalars(
        select(LedgerEntry).where(
            LedgerEntry.project_id == project_id, LedgerEntry.dedupe_key.in_(list(dedupe_keys))
        )
    ).all()


def append(session: Session, entry: LedgerEntry) -> LedgerEntry:
    """Append one entry; a dedupe key that is there already violates the constraint."""
    session.add(entry)
    session.flush()
    return entry


def lock_entry(session: Session, entry_id: int) -> LedgerEntry | None:
    """Hold an entry until the unit ends, so that only one at a time is about it."""
    return session.get(LedgerEntry, entry_id, with_for_update=TO_CHANGE)


def list_entries(
    session: Session, project_id: str | None, after_id: int, limit: int, cache_id: str | None = None
) -> Sequence[LedgerEntry]:
    """List entries after one, in the order in which they were appended, of one project or all, of one cache or any."""
    query = select(LedgerEntry).where(LedgerEntry.id > after_id)
    if project_id is not None:
        query = query.where(LedgerEntry.project_id == project_id)
    if cache_id is not None:
        query = query.where(LedgerEntry.cache_id == cache_id)
    return session.scalars(query.order_by(LedgerEntry.id).limit(limit)).all()


def list_corrections(session: Session, entry_id: int) -> Sequence[LedgerEntry]:
    return session.scalars(
        select(LedgerEntry).where(LedgerEntry.corrects_id == entry_id).order_by(LedgerEntry.id)
    ).all()


def sum_of_period(session: Session, month: str) -> int:
    """What all charges of a month come to."""
    query = select(func.coalesce(func.sum(LedgerEntry.amount_nano_usd), 0)).where(
        LedgerEntry.period == month, LedgerEntry.kind.in_(CHARGES)
    )
    return int(session.scalars(query).one())  # PostgreSQL's sum of its large integers is a decimal


def sum_counted(session: Session, project_id: str, key_id: str, month: str) -> int:
    """What counts against the limits of a month: all charges of a project or, with a key_id, those of one key."""
    total = 0
    for counts in (
        and_(LedgerEntry.period == month, LedgerEntry.limit_month.is_(None)),
        LedgerEntry.limit_month == month,
    ):
        query = select(func.coalesce(func.sum(LedgerEntry.amount_nano_usd), 0)).where(
            LedgerEntry.project_id == project_id, LedgerEntry.kind.in_(CHARGES), counts
        )
        if key_id:
            query = query.where(LedgerEntry.key_id == key_id)
        total += int(session.scalars(query).one())
    return total


def newest_settled_id(session: Session) -> int:
    """The newest entry before which none can appear any more. Give it a short write unit of its own.

    PostgreSQL gives ids out before their rows are committed: whoever appends now is waited for, and holds up others that long.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE ledger_entries IN SHARE MODE"))
    return session.scalars(select(func.coalesce(func.max(LedgerEntry.id), 0))).one()
