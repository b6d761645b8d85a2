"""What a cache may become, one function a step. Each needs an open write unit, locks the row and commits nothing.

    create ──► PENDING ── activate ──► ACTIVE ── extend ──► ACTIVE ── delete ──► DELETED
                  └────── fail ──────► FAILED      └── sweep (caching/sweeping.py) ──► EXPIRED

Expiry holds by itself: an ACTIVE row whose expiry has passed counts as expired, whether it was swept or not.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from billing import holds, storage, usage
from billing.meters import CREATE_METERS
from billing.prices import require_prices
from billing.terms import lock_terms_of
from caching.quotas import check_quotas
from core.clock import Clock, format_instant, instant
from core.errors import (
    CacheDeleted,
    CacheExpired,
    CacheModelRetired,
    CacheNotFound,
    FingerprintChanged,
    InvalidArgument,
)
from core.ids import cache_name, new_cache_id
from models.cache import (
    Cache,
    CacheEndReason,
    CacheState,
    find_cache,
    find_cache_with_content,
    insert_cache,
    list_live_fingerprints,
    lock_active_of_other_fingerprints,
    lock_cache,
    lock_cache_by_id,
    lock_pending_of_dead,
    mark_ended,
)
from models.placement import Holder, place, remove_placements, remove_placements_of_dead
from models.project import lock_project
from models.usage import list_projects_of_dead

# How long the owner of an ended cache is told what became of it; then it looks like one that never was.
TOMBSTONE = timedelta(days=30)


def create(
    session: Session,
    *,
    project_id: str,
    key_id: str,
    model: str,
    fingerprint: str,
    display_name: str,
    messages: list[dict[str, str]],
    prefix_text: str,
    token_ids: Iterable[int],
    expire_at: datetime,
    incarnation: str,
    now: datetime,
    max_caches: int,
    max_cached_tokens: int | None = None,
) -> Cache:
    """Write a cache that is yet to be built; raises CacheQuota if the project would have more than it may, PriceMissing if writing or
    keeping it has no price, and SpendLimit or CreditExhausted if there is no room for what it will cost.

    max_cached_tokens: in all of its live caches of this model, unless the project has a quota of its own.
    """
    _check_future(expire_at, now)
    ids = tuple(token_ids)
    require_prices(session, project_id, model, CREATE_METERS, now)
    lock_project(session, project_id)
    check_quotas(
        session,
        project_id,
        model,
        len(ids),
        now,
        max_caches=max_caches,
        max_cached_tokens=max_cached_tokens,
    )
    cache = Cache(
        id=new_cache_id(),
        project_id=project_id,
        key_id=key_id,
        model=model,
        fingerprint=fingerprint,
        display_name=display_name,
        state=CacheState.PENDING,
        token_count=len(ids),
        prefix_text=prefix_text,
        messages=messages,
        token_ids=ids,
        incarnation=incarnation,
        fencing_token=1,
        created_at=now,
        updated_at=now,
        expire_at=expire_at,
    )
    insert_cache(session, cache)
    holds.hold_cache(session, cache)
    return cache


def activate(session: Session, clock: Clock, cache_id: str, fencing_token: int, holder: Holder) -> bool:
    """Make a built cache usable and start its bill; False, and nothing billed, if the build no longer counts.

    It does not when the cache has ended, when somebody else builds it by now, or when its expiry has passed: then
    it fails here.
    """
    cache = lock_cache_by_id(session, cache_id)
    if cache is None or cache.state != CacheState.PENDING or cache.fencing_token != fencing_token:
        return False
    now = instant(session, clock, not_before=cache.updated_at)
    if now >= cache.expire_at:
        _fail(session, cache, CacheExpired.code, now)
        return False
    cache.state = CacheState.ACTIVE
    cache.activated_at = now
    cache.updated_at = now
    session.flush()
    place(session, cache.id, holder)
    usage.record_write(
        session,
        cache_id=cache.id,
        project_id=cache.project_id,
        key_id=cache.key_id,
        model=cache.model,
        incarnation=cache.incarnation,
        token_count=cache.token_count,
        at=now,
    )
    storage.open_segment(
        session,
        cache_id=cache.id,
        project_id=cache.project_id,
        key_id=cache.key_id,
        model=cache.model,
        token_count=cache.token_count,
        started_at=now,
        ends_at=cache.expire_at,
    )
    return True


def was_activated(session: Session, cache_id: str, fencing_token: int) -> bool:
    """Whether it is ACTIVE under this token: asked when a commit may have succeeded although its answer was lost."""
    cache = lock_cache_by_id(session, cache_id)
    return cache is not None and (cache.state, cache.fencing_token) == (CacheState.ACTIVE, fencing_token)


def rebuilt(session: Session, cache_id: str, holder: Holder) -> bool:
    """Record where the KV of a usable cache lies again; False, and nothing recorded, if the cache has ended. Bills nothing."""
    cache = lock_cache_by_id(session, cache_id)
    if cache is None or cache.state != CacheState.ACTIVE:
        return False
    place(session, cache_id, holder)
    return True


def fail(session: Session, clock: Clock, cache_id: str, reason: str) -> bool:
    """End a cache that is not built, unbilled; `reason` is the code of the error that ended the build."""
    cache = lock_cache_by_id(session, cache_id)
    if cache is None or cache.state != CacheState.PENDING:
        return False
    _fail(session, cache, reason, instant(session, clock, not_before=cache.updated_at))
    return True


def get(session: Session, project_id: str, cache_id: str, now: datetime) -> Cache:
    """Get a usable cache; a read unit is enough. Content is not loaded.

    Raises CacheNotFound for one that never was usable or is another project's, a subclass for one that has ended.
    """
    return usable(find_cache(session, project_id, cache_id), cache_id, now)


def get_with_content(session: Session, project_id: str, cache_id: str, now: datetime) -> Cache:
    """Get a usable cache with its messages and prefix text, as `get` does."""
    return usable(find_cache_with_content(session, project_id, cache_id), cache_id, now)


def usable(cache: Cache | None, cache_id: str, now: datetime) -> Cache:
    """Give back a cache that may be used at an instant; raise for any other what its owner is to be told."""
    if cache is None or cache.state in {CacheState.PENDING, CacheState.FAILED}:
        raise _gone(CacheNotFound, cache_id)
    if cache.state == CacheState.ACTIVE and now < cache.expire_at:
        return cache
    ended_at = cache.ended_at or cache.expire_at
    if now >= ended_at + TOMBSTONE:
        raise _gone(CacheNotFound, cache_id)
    if cache.end_reason == CacheEndReason.DELETED:
        raise _gone(CacheDeleted, cache_id)
    if cache.end_reason == CacheEndReason.MODEL_RETIRED:
        raise _gone(CacheModelRetired, cache_id)
    raise _gone(CacheExpired, cache_id, expireTime=format_instant(ended_at))


def extend(
    session: Session,
    clock: Clock,
    project_id: str,
    cache_id: str,
    *,
    expire_at: datetime | None = None,
    ttl_seconds: float | None = None,
    max_ttl_seconds: float | None = None,
) -> Cache:
    """Move the expiry of a usable cache, to an instant or to so long from now; raises as `get` does.

    A longer life is refused as a create is where there is no room for what it will cost.
    """
    assert (expire_at is None) != (ttl_seconds is None)
    cache = lock_cache(session, project_id, cache_id)
    now = _now(session, clock, cache)
    cache = usable(cache, cache_id, now)
    if expire_at is None:
        expire_at = now + timedelta(seconds=ttl_seconds or 0)
    _check_future(expire_at, now)
    if max_ttl_seconds is not None and expire_at > now + timedelta(seconds=max_ttl_seconds):
        raise InvalidArgument(
            f"The expiry may be at most {max_ttl_seconds:g} seconds from now.", field="expire_time"
        )
    cache.expire_at = expire_at
    cache.updated_at = now
    session.flush()
    storage.move_end(session, cache.id, expire_at, asked_at=now)
    return cache


def delete(session: Session, clock: Clock, project_id: str, cache_id: str) -> None:
    """End a usable cache now, and its bill; raises as `get` does. Its content is gone with the commit."""
    cache = lock_cache(session, project_id, cache_id)
    now = _now(session, clock, cache)
    cache = usable(cache, cache_id, now)
    _end(session, cache, CacheEndReason.DELETED, now)


def recover(session: Session, clock: Clock, incarnation: str) -> tuple[int, int]:
    """Settle what dead processes left: their unbuilt caches fail, their reserved usage is void. Gives both counts.

    For a start at which no other process runs.
    """
    remove_placements_of_dead(session, incarnation)
    left = lock_pending_of_dead(session, incarnation)
    voided_in = list_projects_of_dead(session, incarnation)
    lock_terms_of(session, [*(cache.project_id for cache in left), *voided_in])
    for cache in left:
        _fail(session, cache, "worker_lost", _now(session, clock, cache))
    return len(left), usage.void_of_dead(session, incarnation, instant(session, clock))


def check_fingerprint(session: Session, fingerprint: str, now: datetime) -> None:
    """Raise FingerprintChanged if usable caches are bound to another model than the one to be served.

    A fingerprint is "<digest of tokenizer and template>:<digest of weights and config>": the first half tells
    whether the stored token ids still mean the same to the model.
    """
    others = {
        other: count for other, count in list_live_fingerprints(session, now).items() if other != fingerprint
    }
    if not others:
        return
    count = sum(others.values())
    if all(_tokens_alike(other, fingerprint) for other in others):
        remedy = (
            "Start with --rebuild-caches to build them again, unbilled, or with --retire-caches to end them."
        )
    else:
        remedy = "Serve that model again, or start with --retire-caches to end them."
    raise FingerprintChanged(
        f"Live caches that belong to another model than the one to be served: {count}. {remedy}",
        metadata={"count": str(count), "fingerprint": fingerprint},
    )


def rebind(session: Session, fingerprint: str) -> int:
    """Bind active caches to new weights of their model, where tokenizer and template are the same; gives how many."""
    alike = [
        cache
        for cache in lock_active_of_other_fingerprints(session, fingerprint)
        if _tokens_alike(cache.fingerprint, fingerprint)
    ]
    for cache in alike:
        cache.fingerprint = fingerprint
    session.flush()
    return len(alike)


def retire(session: Session, clock: Clock, fingerprint: str) -> list[str]:
    """End every usable cache of another model now, and its bill; gives their ids. Expired ones are the sweeper's."""
    ended = []
    others = lock_active_of_other_fingerprints(session, fingerprint)
    # In the order of whoever keeps the books, which may go on meanwhile: segments, then terms.
    storage.lock_lives(session, [cache.id for cache in others])
    lock_terms_of(session, (cache.project_id for cache in others))
    for cache in others:
        now = _now(session, clock, cache)
        if now < cache.expire_at:
            _end(session, cache, CacheEndReason.MODEL_RETIRED, now)
            ended.append(cache.id)
    return ended


def _tokens_alike(one: str, other: str) -> bool:
    return one.partition(":")[0] == other.partition(":")[0]


def _end(session: Session, cache: Cache, reason: CacheEndReason, now: datetime) -> None:
    mark_ended(cache, CacheState.DELETED, reason, ended_at=now, at=now)
    session.flush()
    remove_placements(session, [cache.id])
    storage.close(session, cache.id, now)


def _now(session: Session, clock: Clock, cache: Cache | None) -> datetime:
    """Stamp an event of a cache that is locked: after its last one, its last use, and what its storage is posted up to."""
    if cache is None:
        return instant(session, clock)
    last = storage.last_event(session, cache.id)
    return instant(
        session, clock, not_before=cache.updated_at if last is None else max(cache.updated_at, last)
    )


def _fail(session: Session, cache: Cache, reason: str, now: datetime) -> None:
    cache.failure = reason
    mark_ended(cache, CacheState.FAILED, CacheEndReason.FAILED, ended_at=now, at=now)
    session.flush()
    holds.release_cache(session, cache)


def _check_future(expire_at: datetime, now: datetime) -> None:
    if expire_at <= now:
        raise InvalidArgument(
            f"The expiry {expire_at.isoformat()} is not in the future. Name a later one.", field="expire_time"
        )


def _gone(kind: type[CacheNotFound], cache_id: str, **metadata: str) -> CacheNotFound:
    name = cache_name(cache_id)
    return kind(
        f"There is no cached content {name}.", field="cached_content", metadata={"name": name} | metadata
    )
