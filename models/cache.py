"""Caches: the row of a customer's named, expiring piece of context, and every query on it.

PENDING ──► ACTIVE ──► EXPIRED | DELETED      What was cached (messages, prefix text, token ids) is there
   └──────► FAILED                            before the end and gone after it; the checks hold both.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import (
    JSON,
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    Index,
    Text,
    UniqueConstraint,
    and_,
    func,
    select,
    tuple_,
)
from sqlalchemy.orm import Mapped, Session, defer, mapped_column

from models.base import TO_CHANGE, Base, TokenIds, UtcDateTime, enum_text, one_of


class CacheState(StrEnum):
    PENDING = "PENDING"
    ACTIVE = "ACTIVE"
    EXPIRED = "EXPIRED"
    DELETED = "DELETED"
    FAILED = "FAILED"


class CacheEndReason(StrEnum):
    EXPIRED = "EXPIRED"
    DELETED = "DELETED"
    FAILED = "FAILED"
    MODEL_RETIRED = "MODEL_RETIRED"


_LIVE = (CacheState.PENDING, CacheState.ACTIVE)
_HAS_CONTENT = "prefix_text IS NOT NULL AND messages IS NOT NULL AND token_ids IS NOT NULL"
_NO_CONTENT = "prefix_text IS NULL AND messages IS NULL AND token_ids IS NULL"


class Cache(Base):
    __tablename__ = "caches"
    __table_args__ = (
        UniqueConstraint(
            "project_id", "id"
        ),  # what usage and storage segments refer to: never another project's
        CheckConstraint(one_of("state", CacheState), name="state_known"),
        CheckConstraint("token_count > 0", name="token_count_positive"),
        CheckConstraint("fencing_token >= 1", name="fencing_token_positive"),
        # A check that comes out NULL passes: what may be NULL is asked for NULL first.
        CheckConstraint(
            "(activated_at IS NULL) = (state IN ('PENDING', 'FAILED'))", name="activated_by_state"
        ),
        CheckConstraint("(ended_at IS NULL) = (state IN ('PENDING', 'ACTIVE'))", name="ended_by_state"),
        CheckConstraint("(end_reason IS NULL) = (ended_at IS NULL)", name="end_reason_when_ended"),
        CheckConstraint(
            "end_reason IS NULL OR (state = 'EXPIRED' AND end_reason = 'EXPIRED' AND ended_at = expire_at) "
            "OR (state = 'DELETED' AND end_reason IN ('DELETED', 'MODEL_RETIRED')) "
            "OR (state = 'FAILED' AND end_reason = 'FAILED')",
            name="end_reason_by_state",
        ),
        CheckConstraint(
            f"(state IN ('PENDING', 'ACTIVE') AND {_HAS_CONTENT}) OR "
            f"(state NOT IN ('PENDING', 'ACTIVE') AND {_NO_CONTENT})",
            name="content_until_end",
        ),
        CheckConstraint("(failure IS NOT NULL) = (state = 'FAILED')", name="failure_of_failed"),
        CheckConstraint("expire_at > created_at", name="expire_after_created"),
        CheckConstraint("updated_at >= created_at", name="updated_after_created"),
        CheckConstraint("activated_at IS NULL OR activated_at >= created_at", name="activated_after_created"),
        CheckConstraint("activated_at IS NULL OR activated_at < expire_at", name="activated_before_expire"),
        CheckConstraint("ended_at IS NULL OR ended_at >= created_at", name="ended_after_created"),
        CheckConstraint(
            "ended_at IS NULL OR activated_at IS NULL OR ended_at >= activated_at",
            name="ended_after_activated",
        ),
        Index(None, "project_id", "state", "created_at", "id"),
        Index(None, "state", "expire_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    model: Mapped[str]  # the name it is served under
    fingerprint: Mapped[str]
    display_name: Mapped[str] = mapped_column(default="")
    state: Mapped[CacheState] = mapped_column(enum_text(CacheState))
    token_count: Mapped[int]
    incarnation: Mapped[str]  # of the process whose request waits for the build
    fencing_token: Mapped[int]  # what a build must show to activate the cache
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime
    )  # the last event: none is ever stamped before it
    expire_at: Mapped[datetime] = mapped_column(UtcDateTime)
    activated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_reason: Mapped[CacheEndReason | None] = mapped_column(enum_text(CacheEndReason))
    failure: Mapped[str | None]  # the code of the error that ended the build, or worker_lost
    # Content stands last: what comes after it in a row SQLite finds only by walking through all of its pages.
    prefix_text: Mapped[str | None] = mapped_column(Text)
    messages: Mapped[list[dict[str, str]] | None] = mapped_column(JSON(none_as_null=True))
    # Read by builds alone, through find_prefix: a hit must not drag them along.
    token_ids: Mapped[tuple[int, ...] | None] = mapped_column(
        TokenIds, deferred=True, deferred_raiseload=True
    )


_WITHOUT_CONTENT = select(Cache).options(defer(Cache.prefix_text), defer(Cache.messages))
# To be locked: what the unit read before it had the lock may be outdated.
_FRESH = _WITHOUT_CONTENT.execution_options(populate_existing=True)


def insert_cache(session: Session, cache: Cache) -> None:
    session.add(cache)
    session.flush()


def find_cache(session: Session, project_id: str, cache_id: str) -> Cache | None:
    """Find a project's cache in whatever state it is. Content is not loaded."""
    return session.scalars(_WITHOUT_CONTENT.where(_is(project_id, cache_id))).one_or_none()


def find_cache_with_content(session: Session, project_id: str, cache_id: str) -> Cache | None:
    """Find a project's cache, with its messages and prefix text, in whatever state it is."""
    return session.scalars(select(Cache).where(_is(project_id, cache_id))).one_or_none()


class Prefix(NamedTuple):
    """What a build computes, and for whom."""

    project_id: str
    token_ids: tuple[int, ...]


def find_prefix(session: Session, cache_id: str) -> Prefix | None:
    """Find what a build computes; None once the cache has ended."""
    row = session.execute(select(Cache.project_id, Cache.token_ids).where(Cache.id == cache_id)).one_or_none()
    return None if row is None or row.token_ids is None else Prefix(row.project_id, row.token_ids)


def lock_cache(session: Session, project_id: str, cache_id: str) -> Cache | None:
    """Hold a project's cache until the unit ends, to change it. Content is not loaded."""
    return session.scalars(_FRESH.where(_is(project_id, cache_id)).with_for_update(**TO_CHANGE)).one_or_none()


def lock_cache_shared(session: Session, project_id: str, cache_id: str) -> Cache | None:
    """Keep a project's cache from changing until the unit ends; others may do the same. Content is not loaded."""
    return session.scalars(_FRESH.where(_is(project_id, cache_id)).with_for_update(read=True)).one_or_none()


def lock_cache_by_id(session: Session, cache_id: str) -> Cache | None:
    """Hold any project's cache until the unit ends: for builds, which know no project. Content is not loaded."""
    return session.scalars(_FRESH.where(Cache.id == cache_id).with_for_update(**TO_CHANGE)).one_or_none()


def list_live_caches(
    session: Session, project_id: str, now: datetime, limit: int, before: tuple[datetime, str] | None
) -> Sequence[Cache]:
    """List a project's usable caches, newest first, those after `before` (created_at, id). Content is not loaded."""
    query = _WITHOUT_CONTENT.where(
        Cache.project_id == project_id, Cache.state == CacheState.ACTIVE, Cache.expire_at > now
    )
    if before is not None:
        query = query.where(tuple_(Cache.created_at, Cache.id) < before)
    return session.scalars(query.order_by(Cache.created_at.desc(), Cache.id.desc()).limit(limit)).all()


def count_live(session: Session, project_id: str, now: datetime) -> int:
    """Count a project's caches that are usable or being built."""
    return session.scalars(
        select(func.count())
        .select_from(Cache)
        .where(Cache.project_id == project_id, Cache.state.in_(_LIVE), Cache.expire_at > now)
    ).one()


def list_pending(session: Session, project_id: str) -> Sequence[Cache]:
    """List a project's caches that are being built. Content is not loaded."""
    return session.scalars(
        _WITHOUT_CONTENT.where(Cache.project_id == project_id, Cache.state == CacheState.PENDING)
    ).all()


def sum_live_tokens(session: Session, project_id: str, model: str, now: datetime) -> int:
    """Add up the tokens of a project's caches of a model that are usable or being built."""
    return session.scalars(
        select(func.coalesce(func.sum(Cache.token_count), 0)).where(
            Cache.project_id == project_id,
            Cache.state.in_(_LIVE),
            Cache.model == model,
            Cache.expire_at > now,
        )
    ).one()


def list_live_sizes(
    session: Session, project_id: str, now: datetime, model: str | None = None
) -> Sequence[tuple[datetime, int]]:
    """When each cache of a project that is usable or being built expires, and its tokens; of one model or, with None, any."""
    query = select(Cache.expire_at, Cache.token_count).where(
        Cache.project_id == project_id, Cache.state.in_(_LIVE), Cache.expire_at > now
    )
    if model is not None:
        query = query.where(Cache.model == model)
    return [(expire_at, token_count) for expire_at, token_count in session.execute(query)]


def list_caches_to_rebuild(session: Session, fingerprint: str, now: datetime) -> Sequence[Cache]:
    """List all usable caches of a model, oldest first. Content is not loaded."""
    return session.scalars(
        _WITHOUT_CONTENT.where(
            Cache.state == CacheState.ACTIVE, Cache.fingerprint == fingerprint, Cache.expire_at > now
        ).order_by(Cache.created_at, Cache.id)
    ).all()


def list_live_fingerprints(session: Session, now: datetime) -> dict[str, int]:
    """Count usable caches by the fingerprint they are bound to."""
    rows = session.execute(
        select(Cache.fingerprint, func.count())
        .where(Cache.state == CacheState.ACTIVE, Cache.expire_at > now)
        .group_by(Cache.fingerprint)
        .order_by(Cache.fingerprint)
    )
    return {row.fingerprint: row[1] for row in rows}


def lock_due(session: Session, now: datetime, limit: int) -> Sequence[Cache]:
    """Hold caches whose expiry has passed but whose row has not ended; what another unit holds is left to it."""
    return session.scalars(
        _FRESH.where(Cache.state.in_(_LIVE), Cache.expire_at <= now)
        .order_by(Cache.expire_at, Cache.id)
        .limit(limit)
        .with_for_update(skip_locked=True, **TO_CHANGE)
    ).all()


def lock_pending_of_dead(session: Session, incarnation: str) -> Sequence[Cache]:
    """Hold the caches that every incarnation but this one left unbuilt: nobody waits for them any more."""
    return session.scalars(
        _FRESH.where(Cache.state == CacheState.PENDING, Cache.incarnation != incarnation)
        .order_by(Cache.id)
        .with_for_update(**TO_CHANGE)
    ).all()


def lock_active_of_other_fingerprints(session: Session, fingerprint: str) -> Sequence[Cache]:
    """Hold the active caches, expired or not, that are bound to another model."""
    return session.scalars(
        _FRESH.where(Cache.state == CacheState.ACTIVE, Cache.fingerprint != fingerprint)
        .order_by(Cache.id)
        .with_for_update(**TO_CHANGE)
    ).all()


def mark_ended(
    cache: Cache, state: CacheState, reason: CacheEndReason, ended_at: datetime, at: datetime
) -> None:
    """End a cache that is locked, at `ended_at`, by an event at `at`; its content goes, and its name, which is words too."""
    cache.state = state
    cache.end_reason = reason
    cache.ended_at = ended_at
    cache.updated_at = at
    cache.prefix_text = None
    cache.messages = None
    cache.token_ids = None
    cache.display_name = ""


def _is(project_id: str, cache_id: str) -> ColumnElement[bool]:
    return and_(Cache.project_id == project_id, Cache.id == cache_id)
