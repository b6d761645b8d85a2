"""Credit: what a project was given beforehand, how much of it charges have used, and how much is held for what runs."""

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    ColumnElement,
    CursorResult,
    ForeignKey,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base
from models.limit import Limit
from models.project import Project


class Credit(Base):
    """A project without any has no row. held_nano_usd: only of a prepaid project; else 0, and nothing is refused."""

    __tablename__ = "credits"
    __table_args__ = (
        CheckConstraint(
            "used_nano_usd >= 0 AND used_nano_usd <= granted_nano_usd", name="used_within_granted"
        ),
        CheckConstraint("held_nano_usd >= 0", name="held_not_negative"),
        CheckConstraint("is_prepaid OR held_nano_usd = 0", name="held_when_prepaid"),
    )

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    granted_nano_usd: Mapped[int] = mapped_column(BigInteger, default=0)
    used_nano_usd: Mapped[int] = mapped_column(BigInteger, default=0)
    held_nano_usd: Mapped[int] = mapped_column(BigInteger, default=0)
    is_prepaid: Mapped[bool] = mapped_column(Boolean, default=False)

    @property
    def balance_nano_usd(self) -> int:
        """What charges can still use."""
        return self.granted_nano_usd - self.used_nano_usd


def find_credit(session: Session, project_id: str) -> Credit | None:
    """Find a project's credit as it stands now."""
    return session.get(Credit, project_id, populate_existing=True)


def list_credits(session: Session, project_id: str | None) -> Sequence[Credit]:
    """List the credit of one project or, with None, of all that have any."""
    query = select(Credit).order_by(Credit.project_id)
    if project_id is not None:
        query = query.where(Credit.project_id == project_id)
    return session.scalars(query).all()


def insert_credit(session: Session, credit: Credit) -> None:
    session.add(credit)
    session.flush()


def add_granted(session: Session, project_id: str, amount: int) -> None:
    _change(session, [Credit.project_id == project_id], granted_nano_usd=Credit.granted_nano_usd + amount)


def add_used(session: Session, project_id: str, amount: int) -> None:
    """Use credit or, with a negative amount, give it back; more than was granted violates a check."""
    _change(session, [Credit.project_id == project_id], used_nano_usd=Credit.used_nano_usd + amount)


def add_held(session: Session, project_id: str, amount: int, *, must_fit: bool) -> bool:
    """Hold more credit, or less; False, and nothing changed, where it must fit into what is there and does not."""
    conditions: list[ColumnElement[bool]] = [Credit.project_id == project_id]
    if must_fit:
        left = Credit.granted_nano_usd - Credit.used_nano_usd - Credit.held_nano_usd
        conditions.append(left >= amount)
    return _change(session, conditions, held_nano_usd=Credit.held_nano_usd + amount)


def set_prepaid(session: Session, project_id: str, held_nano_usd: int, *, is_prepaid: bool) -> None:
    _change(session, [Credit.project_id == project_id], is_prepaid=is_prepaid, held_nano_usd=held_nano_usd)


def find_terms(session: Session, project_ids: Sequence[str]) -> dict[str, tuple[Credit | None, list[Limit]]]:
    """What the spending of projects is subject to, in one query; those that are subject to nothing are left out."""
    query = (
        select(Project.id, Credit, Limit)
        .outerjoin(Credit, Credit.project_id == Project.id)
        .outerjoin(Limit, Limit.project_id == Project.id)
        .where(
            Project.id.in_(project_ids), or_(Credit.project_id.is_not(None), Limit.project_id.is_not(None))
        )
        .order_by(Project.id, Limit.key_id)
        .execution_options(populate_existing=True)
    )
    terms: dict[str, tuple[Credit | None, list[Limit]]] = {}
    for project_id, credit, limit in session.execute(query):
        limits = terms.setdefault(project_id, (credit, []))[1]
        if limit is not None:
            limits.append(limit)
    return terms


def _change(session: Session, conditions: Sequence[ColumnElement[bool]], **values: object) -> bool:
    result = session.execute(
        update(Credit).where(*conditions).values(**values).execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
