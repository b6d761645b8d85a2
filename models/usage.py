"""Usage: one row for each generation, reserved before the work and settled once after it, and one for each cache that became usable,
which is FINAL from the start.

While it is RESERVED, a row that names a cache is that request's lease on the cache.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    CursorResult,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    case,
    false,
    func,
    literal,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TO_CHANGE, Base, UtcDateTime, enum_text, one_of


class UsageKind(StrEnum):
    CREATE = "CREATE"
    GENERATE = "GENERATE"


class UsageState(StrEnum):
    RESERVED = "RESERVED"  # announced; nothing is owed yet
    FINAL = "FINAL"  # owed
    VOID = "VOID"  # ended unbilled


class Usage(Base):
    __tablename__ = "usage"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "cache_id"], ["caches.project_id", "caches.id"]),
        CheckConstraint(one_of("kind", UsageKind), name="kind_known"),
        CheckConstraint(one_of("state", UsageState), name="state_known"),
        # A prompt falls into two disjoint parts: no token is charged twice, and none is forgotten.
        CheckConstraint("input_tokens + cache_read_tokens = prompt_tokens", name="prompt_parts"),
        CheckConstraint(
            "input_tokens >= 0 AND cache_read_tokens >= 0 AND cache_write_tokens >= 0 AND output_tokens >= 0",
            name="tokens_not_negative",
        ),
        # What was read falls into two parts likewise: the named cache, and what was there although no cache was named for it.
        CheckConstraint(
            "implicit_cache_tokens >= 0 AND implicit_cache_tokens <= cache_read_tokens", name="implicit_part"
        ),
        CheckConstraint("implicit_cache_tokens = 0 OR state = 'FINAL'", name="implicit_when_final"),
        CheckConstraint("NOT is_posted OR state = 'FINAL'", name="posted_when_final"),
        CheckConstraint("attempt >= 1", name="attempt_positive"),
        CheckConstraint(
            "(kind = 'GENERATE' AND cache_write_tokens = 0) OR "
            "(kind = 'CREATE' AND cache_id IS NOT NULL AND cache_write_tokens > 0 "
            "AND prompt_tokens = 0 AND output_tokens = 0)",
            name="kind_meters",
        ),
        CheckConstraint(
            "(state = 'RESERVED' AND occurred_at IS NULL AND end_reason IS NULL AND output_tokens = 0) OR "
            "(state <> 'RESERVED' AND occurred_at IS NOT NULL AND occurred_at >= created_at)",
            name="state_instants",
        ),
        Index(
            None, "cache_id", "kind", "state", "created_at"
        ),  # hits are counted, and the last use found, in it alone
        Index(None, "occurred_at"),
        Index(None, "project_id", "occurred_at"),
        Index(None, "state", "incarnation"),
        Index(
            "ix_usage_unposted",
            "id",
            sqlite_where=text("state = 'FINAL' AND NOT is_posted"),
            postgresql_where=text("state = 'FINAL' AND NOT is_posted"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # the request's, or write:<cache id>: once each
    kind: Mapped[UsageKind] = mapped_column(enum_text(UsageKind))
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    cache_id: Mapped[str | None]
    model: Mapped[str]
    state: Mapped[UsageState] = mapped_column(enum_text(UsageState))
    attempt: Mapped[int]
    incarnation: Mapped[str]
    prompt_tokens: Mapped[int]
    input_tokens: Mapped[int]
    cache_read_tokens: Mapped[int]  # explicit and implicit
    implicit_cache_tokens: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    cache_write_tokens: Mapped[int]
    output_tokens: Mapped[int]
    # That it may put out, of all its candidates; what is held for it follows from that.
    most_output_tokens: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    occurred_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_reason: Mapped[str | None]
    is_posted: Mapped[bool] = mapped_column(default=False, server_default=false())  # charged in the ledger


def insert(session: Session, usage: Usage) -> None:
    session.add(usage)
    session.flush()


def find_usage(session: Session, usage_id: str) -> Usage | None:
    return session.get(Usage, usage_id, populate_existing=True)


def count_hits(session: Session, cache_ids: Iterable[str]) -> dict[str, int]:
    """Count the requests that were answered from each cache, and are owed; caches without any are left out."""
    rows = session.execute(
        select(Usage.cache_id, func.count())
        .where(
            Usage.cache_id.in_(list(cache_ids)),
            Usage.kind == UsageKind.GENERATE,
            Usage.state == UsageState.FINAL,
        )
        .group_by(Usage.cache_id)
    )
    return {cache_id: count for cache_id, count in rows if cache_id is not None}


def last_use(session: Session, cache_id: str) -> datetime | None:
    """When a request that named a cache was last accepted, whatever became of it; None where there was none."""
    # Of each state by itself: that is the end of a range of the index, however many there are.
    newest = [
        select(func.max(Usage.created_at).label("at")).where(
            Usage.cache_id == cache_id, Usage.kind == UsageKind.GENERATE, Usage.state == state
        )
        for state in UsageState
    ]
    at: datetime | None = session.scalars(select(func.max(union_all(*newest).subquery().c["at"]))).one()
    return at


def newest_usage(session: Session, after: datetime) -> datetime | None:
    """The last instant at which a request was accepted, where that is after another one; None where none was."""
    # It was not accepted after it ended, and there is an index of that.
    ended = select(func.max(Usage.created_at).label("at")).where(Usage.occurred_at > after)
    runs = select(func.max(Usage.created_at).label("at")).where(Usage.state == UsageState.RESERVED)
    newest: datetime | None = session.scalars(
        select(func.max(union_all(ended, runs).subquery().c["at"]))
    ).one()
    return newest if newest is not None and newest > after else None


def finalise(
    session: Session,
    usage_id: str,
    attempt: int,
    output_tokens: int,
    occurred_at: datetime,
    end_reason: str,
    *,
    implicit_cache_tokens: int = 0,
) -> bool:
    """Settle a reserved row as owed, which the caller posts; False if this attempt no longer holds it.

    implicit_cache_tokens: of what was reserved as input, so many were read instead.
    """
    values = {
        "state": UsageState.FINAL,
        "input_tokens": Usage.input_tokens - implicit_cache_tokens,
        "cache_read_tokens": Usage.cache_read_tokens + implicit_cache_tokens,
        "implicit_cache_tokens": implicit_cache_tokens,
        "output_tokens": output_tokens,
        "end_reason": end_reason,
        "is_posted": True,
    }
    return _settle(session, occurred_at, values, Usage.id == usage_id, Usage.attempt == attempt) == 1


def void(session: Session, usage_id: str, attempt: int, occurred_at: datetime, end_reason: str) -> bool:
    """Settle a reserved row unbilled; False if this attempt no longer holds it."""
    values = {"state": UsageState.VOID, "end_reason": end_reason}
    return _settle(session, occurred_at, values, Usage.id == usage_id, Usage.attempt == attempt) == 1


def void_of_dead(session: Session, incarnation: str, occurred_at: datetime) -> int:
    """Settle unbilled what every incarnation but this one left reserved; gives how many rows that were."""
    values = {"state": UsageState.VOID, "end_reason": "WORKER_LOST"}
    return _settle(session, occurred_at, values, Usage.incarnation != incarnation)


def list_reserved(session: Session, project_id: str) -> Sequence[Usage]:
    """List the requests of a project that run."""
    return session.scalars(
        select(Usage).where(Usage.project_id == project_id, Usage.state == UsageState.RESERVED)
    ).all()


def list_projects_of_dead(session: Session, incarnation: str) -> Sequence[str]:
    """List the projects in which another incarnation than this one left something reserved."""
    return session.scalars(
        select(Usage.project_id)
        .where(Usage.state == UsageState.RESERVED, Usage.incarnation != incarnation)
        .distinct()
        .order_by(Usage.project_id)
    ).all()


def lock_unposted(session: Session, limit: int, after: str = "") -> Sequence[Usage]:
    """Hold owed rows that are not in the ledger, those behind the id `after`; what another unit holds is left to it."""
    return session.scalars(
        select(Usage)
        .where(Usage.state == UsageState.FINAL, ~Usage.is_posted, Usage.id > after)
        .order_by(Usage.id)
        .limit(limit)
        .with_for_update(skip_locked=True, **TO_CHANGE)
    ).all()


def find_unposted(session: Session, end: datetime | None = None) -> str | None:
    """An owed row, from before `end` where that is given, that is not in the ledger; None where all are."""
    query = select(Usage.id).where(Usage.state == UsageState.FINAL, ~Usage.is_posted)
    return session.scalars((query if end is None else query.where(Usage.occurred_at < end)).limit(1)).first()


def _settle(session: Session, at: datetime, values: dict[str, Any], *conditions: ColumnElement[bool]) -> int:
    # A clock that was set back must not keep a row from being settled.
    occurred_at = case((Usage.created_at > at, Usage.created_at), else_=literal(at, UtcDateTime))
    result = session.execute(
        update(Usage)
        .where(Usage.state == UsageState.RESERVED, *conditions)
        .values(occurred_at=occurred_at, **values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
