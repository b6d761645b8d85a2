"""Storage segments: the one contiguous life of each cache during which it is billed for being kept.

`ends_at` is the planned expiry from the start; deleting pulls it in, and whoever sweeps when does not matter.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, UtcDateTime


class StorageSegment(Base):
    __tablename__ = "storage_segments"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "cache_id"], ["caches.project_id", "caches.id"]),
        CheckConstraint("token_count > 0", name="token_count_positive"),
        CheckConstraint("ends_at >= started_at", name="ends_after_started"),
        Index(None, "project_id", "started_at"),
    )

    cache_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    model: Mapped[str]
    token_count: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)


def insert(session: Session, segment: StorageSegment) -> None:
    session.add(segment)
    session.flush()


def get_segment(session: Session, cache_id: str) -> StorageSegment:
    """Get a cache's segment. Every cache that was ever active has one: the caller holds such a cache's lock."""
    return session.scalars(
        select(StorageSegment)
        .where(StorageSegment.cache_id == cache_id)
        .execution_options(populate_existing=True)
    ).one()


def move_end(session: Session, cache_id: str, ends_at: datetime) -> None:
    get_segment(session, cache_id).ends_at = ends_at
    session.flush()


def list_segments(
    session: Session, start: datetime, end: datetime, project_id: str | None
) -> Sequence[StorageSegment]:
    """List the segments that overlap [start, end), of one project or, with None, of all."""
    query = select(StorageSegment).where(StorageSegment.started_at < end, StorageSegment.ends_at > start)
    if project_id is not None:
        query = query.where(StorageSegment.project_id == project_id)
    return session.scalars(query.order_by(StorageSegment.started_at, StorageSegment.cache_id)).all()
