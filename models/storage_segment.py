"""Storage segments: the one contiguous life of each cache during which it is billed for being kept.

`ends_at` is the planned expiry from the start; deleting pulls it in, and whoever sweeps when does not matter. What lies before
`accrued_until` is posted in the ledger and stays as it is: no end is ever moved before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    case,
    func,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column
from sqlalchemy.orm.attributes import set_committed_value

from models.base import TO_CHANGE, Base, UtcDateTime

Place = tuple[datetime, str]  # in the order in which segments are posted: accrued_until, cache_id
_PARAMETERS = 10_000  # of one statement: each database has a limit, the least is 32,766


class StorageSegment(Base):
    __tablename__ = "storage_segments"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "cache_id"], ["caches.project_id", "caches.id"]),
        CheckConstraint("token_count > 0", name="token_count_positive"),
        CheckConstraint("ends_at >= started_at", name="ends_after_started"),
        CheckConstraint("accrued_until >= started_at AND accrued_until <= ends_at", name="accrued_within"),
        Index(None, "project_id", "started_at"),
        # Of those of which something is to be posted, now or later; what is over is no part of it.
        Index(
            "ix_storage_segments_unposted",
            "accrued_until",
            "cache_id",
            sqlite_where=text("accrued_until < ends_at"),
            postgresql_where=text("accrued_until < ends_at"),
        ),
    )

    cache_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))  # that made the cache
    model: Mapped[str]
    token_count: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)
    accrued_until: Mapped[datetime] = mapped_column(UtcDateTime)


def insert(session: Session, segment: StorageSegment) -> None:
    session.add(segment)
    session.flush()


def lock_segment(session: Session, cache_id: str) -> StorageSegment | None:
    """Hold a cache's segment until the unit ends, to move its end; None for a cache that was never active."""
    return session.scalars(
        select(StorageSegment)
        .where(StorageSegment.cache_id == cache_id)
        .with_for_update(**TO_CHANGE)
        .execution_options(populate_existing=True)
    ).one_or_none()


def lock_segments(session: Session, cache_ids: Iterable[str]) -> None:
    """Hold the segments of any number of caches until the unit ends; those that were never active have none."""
    in_order = sorted(cache_ids)
    for first in range(0, len(in_order), _PARAMETERS):
        session.scalars(
            select(StorageSegment)
            .where(StorageSegment.cache_id.in_(in_order[first : first + _PARAMETERS]))
            .order_by(StorageSegment.cache_id)
            .with_for_update(**TO_CHANGE)
            .execution_options(populate_existing=True)
        ).all()


def move_end(session: Session, segment: StorageSegment, ends_at: datetime) -> None:
    """Let a segment that is locked end at another instant."""
    segment.ends_at = ends_at
    session.flush()


def lock_segments_to_accrue(
    session: Session, now: datetime, hour: datetime, limit: int, after: Place | None = None
) -> Sequence[StorageSegment]:
    """Hold segments of which something is to be posted: up to their end where it has passed, else to the whole hour.

    after: only those behind this place. What another unit holds is left to it.
    """
    place = StorageSegment.accrued_until, StorageSegment.cache_id  # as the index has them: nothing is sorted
    query = select(StorageSegment).where(
        StorageSegment.accrued_until < StorageSegment.ends_at,
        StorageSegment.accrued_until < _postable(now, hour),
    )
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(literal(after[0], UtcDateTime), literal(after[1])))
    return session.scalars(
        query.order_by(*place)
        .limit(limit)
        .with_for_update(skip_locked=True, **TO_CHANGE)
        .execution_options(populate_existing=True)
    ).all()


def mark_accrued(
    session: Session, segments: Mapping[str, StorageSegment], now: datetime, hour: datetime
) -> None:
    """Put on record that segments, by their caches, that were locked to be accrued are posted as far as can be."""
    accrued = session.execute(
        update(StorageSegment)
        .where(StorageSegment.cache_id.in_(segments))
        .values(accrued_until=_postable(now, hour))
        .returning(StorageSegment.cache_id, StorageSegment.accrued_until)
        .execution_options(synchronize_session=False)
    )
    for cache_id, until in accrued:
        set_committed_value(segments[cache_id], "accrued_until", until)


def mark_accrued_until(session: Session, segment: StorageSegment, until: datetime) -> None:
    """Put on record that a segment that is locked is posted up to an instant before what can be."""
    segment.accrued_until = until
    session.flush()


def find_segments(session: Session, cache_ids: Sequence[str]) -> Sequence[StorageSegment]:
    """The segments of these caches; those that were never active have none."""
    return session.scalars(select(StorageSegment).where(StorageSegment.cache_id.in_(cache_ids))).all()


def list_segments_beyond_ledger(
    session: Session, start: datetime, end: datetime, project_id: str | None
) -> Sequence[StorageSegment]:
    """List the segments of which something in [start, end) is not posted yet, of one project or, with None, of all."""
    query = select(StorageSegment).where(
        StorageSegment.accrued_until < StorageSegment.ends_at,
        StorageSegment.accrued_until < end,
        StorageSegment.ends_at > start,
        StorageSegment.started_at < end,
    )
    if project_id is not None:
        query = query.where(StorageSegment.project_id == project_id)
    return session.scalars(query.order_by(StorageSegment.started_at, StorageSegment.cache_id)).all()


def list_unposted(session: Session, project_id: str) -> Sequence[StorageSegment]:
    """List a project's segments of which something is not posted, whether it is due or yet to come."""
    return session.scalars(
        select(StorageSegment).where(
            StorageSegment.project_id == project_id, StorageSegment.accrued_until < StorageSegment.ends_at
        )
    ).all()


def newest_accrual(session: Session) -> datetime | None:
    """The last instant up to which the storage of a cache is posted; None where there is none."""
    at: datetime | None = session.scalars(select(func.max(StorageSegment.accrued_until))).one()
    return at


def _postable(now: datetime, hour: datetime) -> ColumnElement[datetime]:
    return case((StorageSegment.ends_at <= now, StorageSegment.ends_at), else_=literal(hour, UtcDateTime))


def find_unposted_before(session: Session, end: datetime) -> str | None:
    """A cache of whose storage before `end` something is not posted yet; None where all is."""
    return session.scalars(
        select(StorageSegment.cache_id)
        .where(
            StorageSegment.accrued_until < StorageSegment.ends_at,
            StorageSegment.accrued_until < end,
            StorageSegment.started_at < end,
        )
        .limit(1)
    ).first()
