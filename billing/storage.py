"""Storage segments: the one contiguous life of a cache during which it is billed for being kept.

A segment runs from activation to the planned expiry, so no sweeper ever affects a bill. Every function needs an open
write unit that holds the cache's row lock, and commits nothing.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from models import storage_segment as rows
from models.storage_segment import StorageSegment


def open_segment(
    session: Session,
    *,
    cache_id: str,
    project_id: str,
    model: str,
    token_count: int,
    started_at: datetime,
    ends_at: datetime,
) -> None:
    """Start billing a cache's storage. A second segment for one cache violates the primary key."""
    rows.insert(
        session,
        StorageSegment(
            cache_id=cache_id,
            project_id=project_id,
            model=model,
            token_count=token_count,
            started_at=started_at,
            ends_at=ends_at,
        ),
    )


def move_end(session: Session, cache_id: str, ends_at: datetime) -> None:
    """Let the segment end at another instant. The caller has checked that the cache is alive at this moment."""
    rows.move_end(session, cache_id, ends_at)


def close(session: Session, cache_id: str, ended_at: datetime) -> None:
    """End the segment now, because the cache was deleted or retired; an end that has passed already stays."""
    rows.move_end(session, cache_id, min(ended_at, rows.get_segment(session, cache_id).ends_at))
