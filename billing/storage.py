"""Storage segments: the one contiguous life of a cache during which it is billed for being kept.

A segment runs from activation to the planned expiry, so no sweeper ever affects a bill. Every function needs an open
write unit that holds the cache's row lock, and commits nothing.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from billing.holds import follow
from models import storage_segment as rows
from models.storage_segment import StorageSegment
from models.usage import last_use


def open_segment(
    session: Session,
    *,
    cache_id: str,
    project_id: str,
    key_id: str,
    model: str,
    token_count: int,
    started_at: datetime,
    ends_at: datetime,
) -> None:
    """Start billing a cache's storage. A second segment for one cache violates the primary key."""
    segment = StorageSegment(
        cache_id=cache_id,
        project_id=project_id,
        key_id=key_id,
        model=model,
        token_count=token_count,
        started_at=started_at,
        ends_at=ends_at,
        accrued_until=started_at,
    )
    rows.insert(session, segment)
    follow(session, [segment])


def lock_lives(session: Session, cache_ids: Sequence[str]) -> None:
    """Hold the segments of several caches before a unit turns to each, and before it asks for any terms."""
    rows.lock_segments(session, cache_ids)


def last_event(session: Session, cache_id: str) -> datetime | None:
    """The last that is on record of a cache's life: up to where its storage is posted, or when it was last used.

    No change of it is stamped before. It stays so until the unit ends. None for a cache that was never active.
    """
    segment = rows.lock_segment(session, cache_id)
    if segment is None:
        return None
    used = last_use(session, cache_id)
    return segment.accrued_until if used is None else max(segment.accrued_until, used)


def move_end(session: Session, cache_id: str, ends_at: datetime, *, asked_at: datetime | None = None) -> None:
    """Let the segment end at another instant. The caller has checked that the cache is alive at this moment.

    asked_at: when somebody asked for it; raises SpendLimit or CreditExhausted where a longer life finds no room.
    """
    segment = _segment(session, cache_id)
    is_longer = ends_at > segment.ends_at
    rows.move_end(session, segment, ends_at)
    follow(session, [segment], refused_at=asked_at if is_longer else None)


def close(session: Session, cache_id: str, ended_at: datetime) -> None:
    """End the segment now, because the cache was deleted or retired; an end that has passed already stays."""
    segment = _segment(session, cache_id)
    rows.move_end(session, segment, min(ended_at, segment.ends_at))
    follow(session, [segment])


def _segment(session: Session, cache_id: str) -> StorageSegment:
    segment = rows.lock_segment(session, cache_id)
    assert segment is not None, "every cache that was ever active has a segment"
    return segment
