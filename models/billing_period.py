"""Billing periods: the months of UTC, each OPEN for what occurs in it until it is CLOSED for ever.

Months are written YYYY-MM. What is posted late for a closed month belongs to the open one in which it is posted.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TO_CHANGE, Base, UtcDateTime, enum_text, one_of
from models.guards import keep_rows
from models.insertion import insert_unless_there


class PeriodState(StrEnum):
    OPEN = "OPEN"
    CLOSED = "CLOSED"


class BillingPeriod(Base):
    __tablename__ = "billing_periods"
    __table_args__ = (
        CheckConstraint(one_of("state", PeriodState), name="state_known"),
        CheckConstraint("length(month) = 7", name="month_form"),
        CheckConstraint("(closed_at IS NULL) = (state = 'OPEN')", name="closed_at_when_closed"),
        CheckConstraint("(amount_nano_usd IS NULL) = (state = 'OPEN')", name="amount_when_closed"),
    )

    month: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[PeriodState] = mapped_column(enum_text(PeriodState))
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    amount_nano_usd: Mapped[int | None] = mapped_column(BigInteger)  # what it came to, when it was closed


keep_rows(BillingPeriod, f"OLD.state = '{PeriodState.CLOSED}'")


def is_open(session: Session, month: str) -> bool:
    """Whether a month takes entries; it stays so until the unit ends."""
    query = select(BillingPeriod.state).where(BillingPeriod.month == month).with_for_update(read=True)
    state = session.scalars(query).one_or_none()
    if state is None:  # nobody posted into it yet
        _begin(session, month)
        state = session.scalars(query).one()
    return state == PeriodState.OPEN


def lock_period(session: Session, month: str) -> BillingPeriod:
    """Hold a month until the unit ends, to close it: whoever posts into it waits.

    It must not be shared before: two that share it would wait for each other.
    """
    _begin(session, month)
    return session.get_one(BillingPeriod, month, with_for_update=TO_CHANGE, populate_existing=True)


def _begin(session: Session, month: str) -> None:
    insert_unless_there(session, BillingPeriod, [{"month": month, "state": PeriodState.OPEN}], ["month"])


def close(session: Session, period: BillingPeriod, closed_at: datetime, amount_nano_usd: int) -> None:
    period.state = PeriodState.CLOSED
    period.closed_at = closed_at
    period.amount_nano_usd = amount_nano_usd
    session.flush()


def list_periods(session: Session) -> Sequence[BillingPeriod]:
    """List the months that were posted into, the oldest first."""
    return session.scalars(select(BillingPeriod).order_by(BillingPeriod.month)).all()
