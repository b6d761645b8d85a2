"""Hourly accrual: what storage has come to owe by now and is not posted yet. Whoever runs it, and when, changes no bill.

A segment that lives is posted up to the last whole hour; one whose end has passed, to that end. Every run posts what is
missing, whether that is an hour or a week, and posts nothing twice.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from billing.catching_up import Unit
from billing.charges import Charge, storage_charges
from billing.holds import follow
from billing.ledger import post_events
from billing.prices import load_prices
from billing.rating import HOUR, whole_hour
from core.errors import PriceMissing
from models.storage_segment import (
    Place,
    StorageSegment,
    lock_segments_to_accrue,
    mark_accrued,
    mark_accrued_until,
)

# Of a unit: its segments cannot end or be extended while it lasts, and on SQLite nobody else writes. A fraction of a second.
ENTRIES = 2_000


def accrue(
    session: Session, now: datetime, after: Place | None = None, limit: int = ENTRIES
) -> Unit[Place | None]:
    """Post up to `limit` hours of segments behind a place, in the caller's write unit.

    The hours of a segment that do not fit are left to the next unit, a segment that another unit holds to the next run. One
    whose storage has no price, or conflicts with the ledger, is passed over.
    """
    due = lock_segments_to_accrue(session, now, whole_hour(now), limit, after)
    if not due:
        return Unit(after, is_last=True)
    prices = load_prices(session)
    places = {segment.cache_id: (segment.accrued_until, segment.cache_id) for segment in due}
    events: dict[str, list[Charge]] = {}
    refused: dict[str, str] = {}
    cut: dict[str, datetime] = {}
    room = limit
    for segment in due:
        if room <= 0:
            break
        until = accrued_by(segment, now)
        # An hour is an entry, or a few where a price changes in it.
        fits = whole_hour(segment.accrued_until) + room * HOUR
        if fits < until:
            cut[segment.cache_id] = until = fits
        try:
            charges = storage_charges(segment, segment.accrued_until, until, prices)
        except PriceMissing as error:
            refused[segment.cache_id] = str(error)
        else:
            events[segment.cache_id] = charges
            room -= len(charges)
    refused |= post_events(session, events, now)
    posted = [segment for segment in due if segment.cache_id in events and segment.cache_id not in refused]
    _mark(session, posted, cut, now)
    follow(session, posted, prices=prices)
    # One that is posted in part lies ahead: what is posted of it put it behind the others of its hour.
    taken = refused.keys() | (events.keys() - cut)
    done = [place for cache_id, place in places.items() if cache_id in taken]
    passed_over = {f"the storage of cache {cache_id}": why for cache_id, why in refused.items()}
    is_last = len(done) == len(due) < limit
    return Unit(done[-1] if done else after, is_last, passed_over)


def accrued_by(segment: StorageSegment, now: datetime) -> datetime:
    """Up to where a segment can be posted at an instant."""
    return segment.ends_at if segment.ends_at <= now else max(segment.accrued_until, whole_hour(now))


def _mark(
    session: Session, posted: Sequence[StorageSegment], cut: Mapping[str, datetime], now: datetime
) -> None:
    """Put on record how far segments are posted: as far as can be, but for those that are cut."""
    for segment in posted:
        if segment.cache_id in cut:
            mark_accrued_until(session, segment, cut[segment.cache_id])
    whole = {segment.cache_id: segment for segment in posted if segment.cache_id not in cut}
    if whole:
        mark_accrued(session, whole, now, whole_hour(now))
