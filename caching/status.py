"""What a project is shown of a cache beside its row: its state at that instant, where its KV lies, how often it was hit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from billing.cost import costs_of_caches
from core.messages import Cost
from models.cache import Cache, CacheState
from models.placement import Tier, tiers_of
from models.usage import count_hits

_NOTHING = Cost((), 0)


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """state: EXPIRED from the expiry on, swept or not. tier: None while its KV lies nowhere and is rebuilt for the first
    request that asks. hit_count: billed requests. cost: of writing it, and of keeping it so far."""

    cache: Cache
    state: CacheState
    tier: Tier | None
    hit_count: int
    cost: Cost


def status_of(session: Session, caches: Sequence[Cache], now: datetime) -> list[CacheStatus]:
    """In the order of the caches; four queries, however many they are."""
    ids = [cache.id for cache in caches]
    tiers, hits, costs = tiers_of(session, ids), count_hits(session, ids), costs_of_caches(session, ids, now)
    return [
        CacheStatus(
            cache,
            _state(cache, now),
            tiers.get(cache.id),
            hits.get(cache.id, 0),
            costs.get(cache.id, _NOTHING),
        )
        for cache in caches
    ]


def _state(cache: Cache, now: datetime) -> CacheState:
    has_expired = cache.state == CacheState.ACTIVE and now >= cache.expire_at
    return CacheState.EXPIRED if has_expired else cache.state
