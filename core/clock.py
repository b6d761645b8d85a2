"""Where time comes from, and how an instant is written. What is stored or billed is stamped by the database's clock, never
by a host's own."""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.metrics import CLOCK_SETBACKS

log = logging.getLogger(__name__)
_USUAL = timedelta(seconds=1)  # clocks are set right by less all the time
_SECONDS_BETWEEN_WARNINGS = 60.0


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

    A clock that was set back never puts an event before `not_before`, the one preceding it. By more than a second, that is
    counted and logged.
    """
    now = clock.now_in(session).astimezone(UTC)
    if not_before is None or now >= not_before:
        return now
    if not_before - now > _USUAL:
        CLOCK_SETBACKS.inc()
        _warning.give(not_before - now)
    return not_before


class _Warning:
    """Once a minute: a clock that is behind is so for every event until it has caught up."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def give(self, behind: timedelta) -> None:
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
        log.warning(
            "the clock was set back: an event is stamped %s s later than it shows, so as not to lie before the one preceding "
            "it. Check the time synchronisation of the database's host",
            behind.total_seconds(),
        )


_warning = _Warning()


def format_instant(at: datetime) -> str:
    """Write an instant as RFC 3339 in UTC, to the microsecond: the one form that callers are shown."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
