"""Clearing up after expiry: it ends rows and removes content, and changes neither who may use a cache nor any bill."""

from sqlalchemy.orm import Session

from billing.holds import release_cache
from billing.terms import lock_terms_of
from caching.idempotency import forget_old
from core.clock import Clock, instant
from core.errors import CacheExpired
from models.cache import CacheEndReason, CacheState, lock_due, mark_ended
from models.placement import remove_placements


def sweep(session: Session, clock: Clock, limit: int) -> list[str]:
    """End up to `limit` rows whose expiry has passed, at that expiry; gives their ids, so that their KV is dropped.

    A cache that is still being built fails: whoever waits for it is told when the build finds it ended.
    """
    now = instant(session, clock)
    due = lock_due(session, now, limit)
    for cache in due:
        if cache.state == CacheState.ACTIVE:
            mark_ended(cache, CacheState.EXPIRED, CacheEndReason.EXPIRED, ended_at=cache.expire_at, at=now)
        else:
            cache.failure = CacheExpired.code
            mark_ended(cache, CacheState.FAILED, CacheEndReason.FAILED, ended_at=now, at=now)
    session.flush()
    unbuilt = [cache for cache in due if cache.state == CacheState.FAILED]
    lock_terms_of(session, (cache.project_id for cache in unbuilt))
    for cache in unbuilt:
        release_cache(session, cache)
    ended = [cache.id for cache in due]
    remove_placements(session, ended)
    forget_old(session, now)
    return ended
