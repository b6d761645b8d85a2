"""Where time comes from, and how an instant is written. What is stored or billed is stamped by the database's clock, never
by a host's own."""

from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session


class Clock(Protocol):
    def now(self) -> datetime:
        """Give this host's time as an aware datetime."""

    def now_in(self, session: Session) -> datetime:
        """Give the time that holds for everybody who uses the session's database."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def now_in(self, session: Session) -> datetime:
        """PostgreSQL is asked (`clock_timestamp()` moves on inside a transaction); SQLite has no clock but ours."""
        if session.get_bind().dialect.name == "postgresql":
            now: datetime = session.scalars(select(func.clock_timestamp())).one()
            return now
        return self.now()


def instant(session: Session, clock: Clock, not_before: datetime | None = None) -> datetime:
    """Stamp an event inside a unit of work, in UTC; call it after taking the row lock.

    A clock that was set back never puts an event before `not_before`, the one preceding it.
    """
    now = clock.now_in(session).astimezone(UTC)
    return now if not_before is None else max(now, not_before)


def format_instant(at: datetime) -> str:
    """Write an instant as RFC 3339 in UTC, to the microsecond: the one form that callers are shown."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
