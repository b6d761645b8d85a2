"""Prices: dated rows of one price book. A price in force is never changed, so that history never re-prices itself."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, UtcDateTime


class Price(Base):
    """What a million units of one meter cost from an instant on, until the next row of the same model and meter."""

    __tablename__ = "prices"
    __table_args__ = (
        UniqueConstraint("model", "meter", "effective_from"),
        CheckConstraint("nano_usd_per_million >= 0", name="nano_usd_per_million_not_negative"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    model: Mapped[str]
    meter: Mapped[str]
    nano_usd_per_million: Mapped[int] = mapped_column(BigInteger)
    effective_from: Mapped[datetime] = mapped_column(UtcDateTime)


def insert(session: Session, price: Price) -> None:
    session.add(price)
    session.flush()


def delete(session: Session, price: Price) -> None:
    session.delete(price)
    session.flush()


def list_prices(session: Session) -> Sequence[Price]:
    """List every price, by model, meter and date."""
    return session.scalars(select(Price).order_by(Price.model, Price.meter, Price.effective_from)).all()
