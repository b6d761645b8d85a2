"""What must hold between caches, usage rows, segments and the ledger, each as queries that find what breaks it.

None of them changes anything.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from models.cache import Cache, CacheState
from models.ledger_entry import LedgerEntry
from models.ledger_hour import GRAIN, SUMS, LedgerHour, hours_of_entries, watermark
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState

PATIENCE = timedelta(hours=3)
LONGEST_REQUEST = timedelta(hours=25)  # the settings allow a day, and its end has to be put on record


def segments_are_lives(session: Session) -> Iterator[str]:
    """Each cache that was ever active has one segment, from its activation to its end; no other has any."""
    life_end = case((Cache.state == CacheState.DELETED, Cache.ended_at), else_=Cache.expire_at)
    has_segment = StorageSegment.cache_id.is_not(None)
    same = ("project_id", "key_id", "model", "token_count")
    query = (
        select(Cache.id)
        .outerjoin(StorageSegment, StorageSegment.cache_id == Cache.id)
        .where(
            or_(
                Cache.activated_at.is_not(None) != has_segment,
                and_(
                    has_segment,
                    # What is NULL differs too.
                    or_(
                        StorageSegment.started_at.is_distinct_from(Cache.activated_at),
                        StorageSegment.ends_at.is_distinct_from(life_end),
                        *(getattr(StorageSegment, name) != getattr(Cache, name) for name in same),
                    ),
                ),
            )
        )
    )
    for cache_id in session.scalars(query):
        yield f"cache {cache_id}: its storage segment is not its life"
    of_nothing = select(StorageSegment.cache_id).outerjoin(Cache, Cache.id == StorageSegment.cache_id)
    for cache_id in session.scalars(of_nothing.where(Cache.id.is_(None))):
        yield f"storage segment {cache_id}: there is no such cache"


def hits_are_of_living_caches(session: Session) -> Iterator[str]:
    """Whoever read a cache did so while it lived, and read all of it; whoever wrote one wrote all of it."""
    explicit = Usage.cache_read_tokens - Usage.implicit_cache_tokens
    is_create = Usage.kind == "CREATE"
    query = (
        select(Usage.id)
        .outerjoin(Cache, and_(Cache.id == Usage.cache_id, Cache.project_id == Usage.project_id))
        .outerjoin(StorageSegment, StorageSegment.cache_id == Cache.id)
        .where(
            or_(
                and_(Usage.cache_id.is_not(None), StorageSegment.cache_id.is_(None)),
                and_(is_create, Usage.cache_write_tokens != Cache.token_count),
                and_(~is_create, explicit != func.coalesce(Cache.token_count, 0)),
                Usage.created_at < Cache.activated_at,
                and_(~is_create, Usage.created_at > StorageSegment.ends_at),
            )
        )
    )
    for usage_id in session.scalars(query):
        yield f"usage {usage_id}: its cache did not live then, or has another number of tokens"


def reserved_usage_is_settled(session: Session, now: datetime) -> Iterator[str]:
    """What runs has begun within the longest time that a request may take."""
    query = select(Usage.id).where(
        Usage.state == UsageState.RESERVED, Usage.created_at < now - LONGEST_REQUEST
    )
    for usage_id in session.scalars(query):
        yield (
            f"usage {usage_id}: it has been reserved for more than {LONGEST_REQUEST}; a server that starts settles what "
            "others left"
        )


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
    mark = watermark(session)
    newest = session.scalars(select(func.coalesce(func.max(LedgerEntry.id), 0))).one()
    if mark > newest:
        yield f"the ledger ends at entry {newest}, and was rolled up to entry {mark}"
    columns = [*GRAIN, *SUMS, "entry_count"]
    rolled = select(*(getattr(LedgerHour, name) for name in columns))
    # All that was ever entered up to the watermark, rolled up at once.
    entries = hours_of_entries(0, mark)
    for one, other, where in ((rolled, entries, "rolled up"), (entries, rolled, "posted")):
        for row in session.execute(one.except_(other)).mappings():
            about = " / ".join(str(row[name]) for name in GRAIN)
            yield f"{about}: {row['quantity']} for {row['amount_nano_usd']} nano-USD is {where} only"
