"""Idempotent creates: the same key and body, for a day, mean the same cache, whatever has become of it since."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from core.errors import IdempotencyMismatch
from models.cache import Cache, CacheState, find_cache
from models.idempotency_key import (
    IdempotencyKey,
    delete_idempotency_keys,
    find_idempotency_key,
    put_idempotency_key,
)
from models.project import lock_project

KEPT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """What a create says of itself: its key, and all that it asks for, as digests."""

    key_digest: bytes
    body_digest: bytes

    @classmethod
    def of(cls, key: str, body: object) -> "Idempotency":
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        return cls(hashlib.sha256(key.encode()).digest(), hashlib.sha256(canonical).digest())


def find_made_cache(
    session: Session, project_id: str, idempotency: Idempotency, now: datetime
) -> Cache | None:
    """Find the cache that this create has made, or is making, before; None where it is new, or failed unbilled.

    Raises IdempotencyMismatch where the key came with something else.
    """
    row = find_idempotency_key(session, project_id, idempotency.key_digest)
    if row is None or row.created_at <= now - KEPT:
        return None
    cache = find_cache(session, project_id, row.cache_id)
    if cache is None or cache.state == CacheState.FAILED:
        return None  # what failed leaves the key free, for another body too
    if row.body_digest != idempotency.body_digest:
        raise IdempotencyMismatch(
            "This Idempotency-Key was sent with another body. Repeat that body, or take a new key.",
            field="Idempotency-Key",
        )
    return cache


def create_once(
    session: Session,
    project_id: str,
    idempotency: Idempotency,
    now: datetime,
    create: Callable[[Session], Cache],
) -> tuple[Cache, bool]:
    """Create a cache and bind the key to it, in one unit; or give the one that is there, and False."""
    lock_project(session, project_id)
    made = find_made_cache(session, project_id, idempotency, now)
    if made is not None:
        return made, False
    cache = create(session)
    row = IdempotencyKey(
        project_id=project_id,
        key_digest=idempotency.key_digest,
        body_digest=idempotency.body_digest,
        cache_id=cache.id,
        created_at=now,
    )
    put_idempotency_key(session, row)
    return cache, True


def forget_old(session: Session, now: datetime) -> None:
    delete_idempotency_keys(session, now - KEPT)
