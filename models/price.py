"""Prices: dated rows of one price book. A price in force is never changed, so that history never re-prices itself."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, UniqueConstraint, or_, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, UtcDateTime
from models.guards import keep_prices_apart


class Price(Base):
    """What a million units of one meter cost in [effective_from, effective_to), for a project and a model or, with "*", all.

    On PostgreSQL a constraint keeps two rows of one project, model and meter from holding at one instant.
    """

    __tablename__ = "prices"
    __table_args__ = (
        UniqueConstraint("project_id", "model", "meter", "effective_from"),
        CheckConstraint("nano_usd_per_million >= 0", name="nano_usd_per_million_not_negative"),
        CheckConstraint(
            "effective_to IS NULL OR effective_to > effective_from", name="effective_to_after_from"
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(server_default="*")
    model: Mapped[str]
    meter: Mapped[str]
    nano_usd_per_million: Mapped[int] = mapped_column(BigInteger)
    effective_from: Mapped[datetime] = mapped_column(UtcDateTime)
    effective_to: Mapped[datetime | None] = mapped_column(UtcDateTime)


keep_prices_apart(Price)


def lock_prices(session: Session) -> None:
    """Keep others from changing prices until the unit ends; everybody may read them. On SQLite each unit that writes is alone."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE prices IN SHARE ROW EXCLUSIVE MODE"))


def insert(session: Session, price: Price) -> None:
    session.add(price)
    session.flush()


def delete(session: Session, price: Price) -> None:
    session.delete(price)
    session.flush()


def move_end(session: Session, price: Price, effective_to: datetime | None) -> None:
    """Let a price end at another instant; that it is still to come is for the caller to make sure."""
    price.effective_to = effective_to
    session.flush()


def get_price(session: Session, price_id: int) -> Price:
    """Get a price that something refers to."""
    return session.get_one(Price, price_id)


def list_prices(session: Session) -> Sequence[Price]:
    """List every price, by project, model, meter and date."""
    return session.scalars(
        select(Price).order_by(Price.project_id, Price.model, Price.meter, Price.effective_from)
    ).all()


def list_prices_at(
    session: Session, project_ids: Sequence[str], models: Sequence[str], at: datetime
) -> Sequence[Price]:
    """List the prices of these projects and models that hold at an instant."""
    return session.scalars(
        select(Price).where(
            Price.project_id.in_(project_ids),
            Price.model.in_(models),
            Price.effective_from <= at,
            or_(Price.effective_to.is_(None), Price.effective_to > at),
        )
    ).all()
