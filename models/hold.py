"""Holds: what a running request, a build or a living cache may yet come to owe, set aside until it is settled.

A row exists only while its amount is open, and only in projects that have a limit or must have paid before. Its id says what
it is for: the usage row of a request; `write:<cache>`; `storage:<cache>:<month>`.
"""

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    delete,
    func,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base
from models.limit import WHOLE
from models.usage import Usage, UsageState


class Hold(Base):
    __tablename__ = "holds"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "cache_id"], ["caches.project_id", "caches.id"]),
        CheckConstraint("amount_nano_usd > 0", name="amount_positive"),
        CheckConstraint("length(month) = 7", name="month_form"),
        Index(None, "project_id", "month"),
        Index(None, "cache_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))  # whose charge it will be
    cache_id: Mapped[str | None]  # that is written or kept; None for a request, whatever it reads
    month: Mapped[str]  # against whose limits it counts, YYYY-MM
    amount_nano_usd: Mapped[int] = mapped_column(BigInteger)


def find_hold(session: Session, hold_id: str) -> Hold | None:
    return session.get(Hold, hold_id, populate_existing=True)


def list_holds(session: Session, project_id: str) -> Sequence[Hold]:
    return session.scalars(select(Hold).where(Hold.project_id == project_id).order_by(Hold.id)).all()


def list_holds_of_caches(session: Session, cache_ids: Sequence[str]) -> Sequence[Hold]:
    query = select(Hold).where(Hold.cache_id.in_(cache_ids)).order_by(Hold.id)
    return session.scalars(query.execution_options(populate_existing=True)).all()


def list_holds_of_settled(session: Session) -> Sequence[Hold]:
    """List what is held for requests that have ended, which is nobody's any more."""
    query = select(Hold).join(Usage, Usage.id == Hold.id).where(Usage.state != UsageState.RESERVED)
    return session.scalars(query.order_by(Hold.project_id, Hold.id)).all()


def replace_holds(session: Session, before: Sequence[Hold], after: Sequence[Hold]) -> None:
    """Write the second in the place of the first."""
    if before:
        session.execute(
            delete(Hold)
            .where(Hold.id.in_([each.id for each in before]))
            .execution_options(synchronize_session=False)
        )
        for each in before:
            session.expunge(each)
    session.add_all(after)
    session.flush()


def remove_holds(session: Session, project_id: str) -> None:
    """Remove all of a project's: nothing limits it any more."""
    session.execute(
        delete(Hold).where(Hold.project_id == project_id).execution_options(synchronize_session=False)
    )


def sum_held(session: Session, project_id: str, key_id: str = WHOLE, month: str | None = None) -> int:
    """What a project, or one of its keys, holds in one month or, with None, in all."""
    query = select(func.coalesce(func.sum(Hold.amount_nano_usd), 0)).where(Hold.project_id == project_id)
    if key_id != WHOLE:
        query = query.where(Hold.key_id == key_id)
    if month is not None:
        query = query.where(Hold.month == month)
    return int(session.scalars(query).one())
