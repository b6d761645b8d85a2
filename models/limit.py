"""Limits: what a project, or one of its keys, may spend in a month; and what each has spent and holds of it in which month.

A counter of a month exists only beside a limit, from when it is first needed. It is derived then, and can be at any time:
spent is what the ledger has, held what the open holds come to.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ColumnElement,
    CursorResult,
    ForeignKey,
    ForeignKeyConstraint,
    and_,
    delete,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TO_CHANGE, Base, UtcDateTime

WHOLE = ""  # in the place of a key: the project with all of its keys


class Limit(Base):
    """What may be spent in a calendar month of UTC; key_id "": by the whole project. Hard is refused beyond, soft is told."""

    __tablename__ = "limits"
    __table_args__ = (
        CheckConstraint("hard_nano_usd IS NOT NULL OR soft_nano_usd IS NOT NULL", name="hard_or_soft"),
        CheckConstraint("hard_nano_usd IS NULL OR hard_nano_usd >= 0", name="hard_not_negative"),
        CheckConstraint("soft_nano_usd IS NULL OR soft_nano_usd >= 0", name="soft_not_negative"),
        CheckConstraint(
            "hard_nano_usd IS NULL OR soft_nano_usd IS NULL OR soft_nano_usd <= hard_nano_usd",
            name="soft_up_to_hard",
        ),
    )

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    hard_nano_usd: Mapped[int | None] = mapped_column(BigInteger)
    soft_nano_usd: Mapped[int | None] = mapped_column(BigInteger)
    set_at: Mapped[datetime] = mapped_column(UtcDateTime)


class LimitMonth(Base):
    """How much of a limit is used in a month, YYYY-MM: spent is negative where more was taken back than charged."""

    __tablename__ = "limit_months"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "key_id"], ["limits.project_id", "limits.key_id"]),
        CheckConstraint("length(month) = 7", name="month_form"),
        CheckConstraint("held_nano_usd >= 0", name="held_not_negative"),
    )

    project_id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    month: Mapped[str] = mapped_column(primary_key=True)
    spent_nano_usd: Mapped[int] = mapped_column(BigInteger)
    held_nano_usd: Mapped[int] = mapped_column(BigInteger)
    soft_told_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # that the soft limit is reached


def put_limit(session: Session, limit: Limit) -> None:
    """Write it, in the place of the one that there was."""
    session.merge(limit)
    session.flush()


def find_limit(session: Session, project_id: str, key_id: str) -> Limit | None:
    return session.get(Limit, (project_id, key_id), populate_existing=True)


def list_limits(session: Session, project_id: str | None) -> Sequence[Limit]:
    """List the limits of one project or, with None, of all: that of the whole before those of its keys."""
    query = select(Limit).order_by(Limit.project_id, Limit.key_id)
    if project_id is not None:
        query = query.where(Limit.project_id == project_id)
    return session.scalars(query).all()


def remove_limit(session: Session, project_id: str, key_id: str) -> None:
    """Remove a limit, and its counters with it."""
    session.execute(
        delete(LimitMonth).where(LimitMonth.project_id == project_id, LimitMonth.key_id == key_id)
    )
    session.execute(delete(Limit).where(Limit.project_id == project_id, Limit.key_id == key_id))


def insert_counter(session: Session, counter: LimitMonth) -> None:
    session.add(counter)
    session.flush()


def find_counter(session: Session, limit: Limit, month: str) -> LimitMonth | None:
    """Find a limit's counter as it stands now."""
    return session.get(LimitMonth, (limit.project_id, limit.key_id, month), populate_existing=True)


def add_held(session: Session, limit: Limit, month: str, amount: int, at_most: int | None) -> bool:
    """Hold more of a month, or less; False, and nothing changed, where there is no counter or more than at_most is used.

    at_most: of spent and held together; None: however much it comes to.
    """
    conditions = [_is(limit, month)]
    if at_most is not None:
        conditions.append(LimitMonth.spent_nano_usd + LimitMonth.held_nano_usd + amount <= at_most)
    return _change(session, conditions, held_nano_usd=LimitMonth.held_nano_usd + amount)


def add_spent(session: Session, limit: Limit, month: str, amount: int) -> bool:
    """Count what was charged; False where there is no counter."""
    return _change(session, [_is(limit, month)], spent_nano_usd=LimitMonth.spent_nano_usd + amount)


def forget_told(session: Session, limit: Limit, month: str) -> None:
    """Let it be told again that the soft limit is reached: it is another one now."""
    _change(session, [_is(limit, month)], soft_told_at=None)


def lock_soft_reached(session: Session, month: str) -> Sequence[tuple[LimitMonth, Limit]]:
    """Hold the counters, of a month and those to come, that have reached their soft limit without anybody being told; those
    that others hold are left.
    """
    query = (
        select(LimitMonth, Limit)
        .join(Limit, and_(Limit.project_id == LimitMonth.project_id, Limit.key_id == LimitMonth.key_id))
        .where(
            LimitMonth.month >= month,
            LimitMonth.soft_told_at.is_(None),
            LimitMonth.spent_nano_usd >= Limit.soft_nano_usd,
        )
        .order_by(LimitMonth.project_id, LimitMonth.key_id, LimitMonth.month)
        .with_for_update(of=LimitMonth, skip_locked=True, **TO_CHANGE)
    )
    return [(counter, limit) for counter, limit in session.execute(query)]


def _is(limit: Limit, month: str) -> ColumnElement[bool]:
    return and_(
        LimitMonth.project_id == limit.project_id,
        LimitMonth.key_id == limit.key_id,
        LimitMonth.month == month,
    )


def _change(session: Session, conditions: Sequence[ColumnElement[bool]], **values: object) -> bool:
    result = session.execute(
        update(LimitMonth).where(*conditions).values(**values).execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
