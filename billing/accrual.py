"""Hourly accrual: what storage has come to owe by now and is not posted yet. Whoever runs it, and when, changes no bill.

A segment that lives is posted up to the last whole hour; one whose end has passed, to that end. Every run posts what is
missing, whether that is an hour or a week, and posts nothing twice.
"""

import logging
from datetime import datetime

from sqlalchemy.orm import Session

from billing.charges import storage_charges
from billing.holds import follow
from billing.ledger import post
from billing.prices import load_prices
from billing.rating import whole_hour
from billing.terms import lock_terms_of
from core.errors import PriceMissing
from models.storage_segment import StorageSegment, lock_segments_to_accrue, mark_accrued

log = logging.getLogger(__name__)


def accrue(session: Session, now: datetime, limit: int) -> int:
    """Post up to `limit` segments' hours, in the caller's write unit; gives how many segments those were.

    A segment that another unit holds is left to the next run; so is one whose storage has no price, which holds up no other.
    """
    due = lock_segments_to_accrue(session, now, whole_hour(now), limit)
    if not due:
        return 0
    prices = load_prices(session)
    charges, posted = [], {}
    for segment in due:
        until = accrued_by(segment, now)
        try:
            charges += storage_charges(segment, segment.accrued_until, until, prices)
        except PriceMissing as error:
            log.error("the storage of cache %s is not posted: %s", segment.cache_id, error)  # noqa: TRY400 - its text says all
            continue
        posted[segment.cache_id] = segment
    mark_accrued(session, posted, now, whole_hour(now))
    lock_terms_of(session, (segment.project_id for segment in due))
    post(session, charges, now)
    follow(session, due, prices=prices)
    return len(posted)


def accrued_by(segment: StorageSegment, now: datetime) -> datetime:
    """Up to where a segment can be posted at an instant."""
    return segment.ends_at if segment.ends_at <= now else max(segment.accrued_until, whole_hour(now))
