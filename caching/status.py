"""What a project is shown of a cache beside its row: where its KV lies, and how often it was hit."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.cache import Cache
from models.placement import Tier, tiers_of
from models.usage import count_hits


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """tier: None while its KV lies nowhere and is rebuilt for the first request that asks. hit_count: billed requests."""

    cache: Cache
    tier: Tier | None
    hit_count: int


def status_of(session: Session, caches: Sequence[Cache]) -> list[CacheStatus]:
    """In the order of the caches; two queries, however many they are."""
    ids = [cache.id for cache in caches]
    tiers, hits = tiers_of(session, ids), count_hits(session, ids)
    return [CacheStatus(cache, tiers.get(cache.id), hits.get(cache.id, 0)) for cache in caches]
