"""What must hold between the tables of a bill, each as a query that finds what breaks it. None of them changes anything."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from billing.meters import Meter
from models.billing_period import BillingPeriod, PeriodState
from models.cache import Cache, CacheState
from models.ledger_entry import EntryKind, LedgerEntry, sum_of_period
from models.ledger_hour import GRAIN, SUMS, LedgerHour, hours_of_entries, watermark
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState

PATIENCE = timedelta(hours=3)


def segments_are_lives(session: Session) -> Iterator[str]:
    """Each cache that was ever active has one segment, from its activation to its end; no other has any."""
    life_end = case((Cache.state == CacheState.DELETED, Cache.ended_at), else_=Cache.expire_at)
    was_active = Cache.activated_at.is_not(None)
    query = (
        select(Cache.id)
        .outerjoin(StorageSegment, StorageSegment.cache_id == Cache.id)
        .where(
            or_(
                was_active != StorageSegment.cache_id.is_not(None),
                StorageSegment.started_at != Cache.activated_at,
                StorageSegment.ends_at != life_end,
                StorageSegment.token_count != Cache.token_count,
                StorageSegment.key_id != Cache.key_id,
            )
        )
    )
    for cache_id in session.scalars(query):
        yield f"cache {cache_id}: its storage segment is not its life"


def hits_are_of_living_caches(session: Session) -> Iterator[str]:
    """Whoever read a cache did so while it lived, and read all of it; whoever wrote one wrote all of it."""
    explicit = Usage.cache_read_tokens - Usage.implicit_cache_tokens
    is_create = Usage.kind == "CREATE"
    query = (
        select(Usage.id)
        .join(Cache, and_(Cache.id == Usage.cache_id, Cache.project_id == Usage.project_id))
        .join(StorageSegment, StorageSegment.cache_id == Usage.cache_id, isouter=True)
        .where(
            or_(
                StorageSegment.cache_id.is_(None),
                and_(is_create, Usage.cache_write_tokens != Cache.token_count),
                and_(~is_create, explicit != Cache.token_count),
                Usage.created_at < Cache.activated_at,
                and_(~is_create, Usage.created_at > StorageSegment.ends_at),
            )
        )
    )
    for usage_id in session.scalars(query):
        yield f"usage {usage_id}: its cache did not live then, or has another number of tokens"


def owed_usage_is_posted(session: Session) -> Iterator[str]:
    query = select(Usage.id).where(Usage.state == UsageState.FINAL, ~Usage.is_posted)
    for usage_id in session.scalars(query):
        yield f"usage {usage_id}: it is owed and not in the ledger"


def storage_is_posted(session: Session, now: datetime) -> Iterator[str]:
    """What ended, or was kept, is posted some hours later at most: accrual runs every minute."""
    late = now - PATIENCE
    query = select(StorageSegment.cache_id).where(
        StorageSegment.accrued_until < StorageSegment.ends_at,
        StorageSegment.accrued_until
        < case((StorageSegment.ends_at < late, StorageSegment.ends_at), else_=late),
    )
    for cache_id in session.scalars(query):
        yield f"cache {cache_id}: its storage is not posted, though it could have been {PATIENCE} ago"


def hours_are_sums(session: Session) -> Iterator[str]:
    """What is rolled up is what the entries up to the watermark come to."""
    columns = [*GRAIN, *SUMS, "entry_count"]
    rolled = select(*(getattr(LedgerHour, name) for name in columns))
    # All that was ever entered up to the watermark, rolled up at once.
    entries = hours_of_entries(0, watermark(session))
    for one, other, where in ((rolled, entries, "rolled up"), (entries, rolled, "posted")):
        for row in session.execute(one.except_(other)).mappings():
            about = " / ".join(str(row[name]) for name in GRAIN)
            yield f"{about}: {row['quantity']} for {row['amount_nano_usd']} nano-USD is {where} only"


def closed_periods_are_sums(session: Session) -> Iterator[str]:
    for period in session.scalars(select(BillingPeriod).where(BillingPeriod.state == PeriodState.CLOSED)):
        amount = sum_of_period(session, period.month)
        if amount != period.amount_nano_usd:
            yield f"{period.month}: closed at {period.amount_nano_usd} nano-USD, and its entries come to {amount}"


def corrections_leave_something(session: Session) -> Iterator[str]:
    """No entry is corrected below nothing, and a correction is about what it corrects."""
    corrected = LedgerEntry.__table__.alias("corrected")
    correction = LedgerEntry.__table__.alias("correction")
    same = ("meter", "price_id", "key_id", "model", "hour")
    others = [correction.c[name] != corrected.c[name] for name in same]
    query = (
        select(corrected.c.id)
        .join(correction, correction.c.corrects_id == corrected.c.id)
        .where(correction.c.kind == EntryKind.CORRECTION)
        .group_by(corrected.c.id, corrected.c.quantity, corrected.c.amount_nano_usd)
        .having(
            or_(
                corrected.c.quantity + func.sum(correction.c.quantity) < 0,
                corrected.c.amount_nano_usd + func.sum(correction.c.amount_nano_usd) < 0,
                func.sum(case((or_(*others), 1), else_=0)) > 0,
            )
        )
    )
    for entry_id in session.scalars(query):
        yield f"ledger entry {entry_id}: it is corrected below nothing, or by an entry about something else"


def meters_are_known(session: Session) -> Iterator[str]:
    query = select(LedgerEntry.id).where(LedgerEntry.meter.is_not(None), LedgerEntry.meter.not_in([*Meter]))
    for entry_id in session.scalars(query):
        yield f"ledger entry {entry_id}: its meter is unknown"
