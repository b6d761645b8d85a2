"""Placements: in which tier of which process a cache's KV lies. None there means that it is to be rebuilt when asked for.

Nothing is billed by it, and no request fails for want of it: it is what a project is shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKey, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, enum_text, one_of


class Tier(StrEnum):
    GPU = "GPU"
    RAM = "RAM"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds KV, by its incarnation, and where it does."""

    incarnation: str
    tier: Tier


class Placement(Base):
    __tablename__ = "placements"
    __table_args__ = (CheckConstraint(one_of("tier", Tier), name="tier_known"),)

    cache_id: Mapped[str] = mapped_column(ForeignKey("caches.id"), primary_key=True)
    incarnation: Mapped[str] = mapped_column(primary_key=True)  # of the process that holds it
    tier: Mapped[Tier] = mapped_column(enum_text(Tier))


def place(session: Session, cache_id: str, holder: Holder) -> None:
    """Record who holds a cache's KV; once more changes the tier."""
    session.merge(Placement(cache_id=cache_id, incarnation=holder.incarnation, tier=holder.tier))
    session.flush()


def remove_placements(session: Session, cache_ids: Iterable[str]) -> None:
    """The caches have ended: wherever their KV lay, it is given back."""
    session.execute(delete(Placement).where(Placement.cache_id.in_(list(cache_ids))))


def remove_placements_of_dead(session: Session, incarnation: str) -> None:
    """What every process but this one held is gone."""
    session.execute(delete(Placement).where(Placement.incarnation != incarnation))


def tiers_of(session: Session, cache_ids: Iterable[str]) -> dict[str, Tier]:
    """The fastest tier of each cache that has any."""
    rows = session.scalars(select(Placement).where(Placement.cache_id.in_(list(cache_ids)))).all()
    order = list(Tier)
    ranked = sorted(rows, key=lambda placement: order.index(placement.tier), reverse=True)
    return {placement.cache_id: placement.tier for placement in ranked}
