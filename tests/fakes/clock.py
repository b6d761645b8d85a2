"""A clock that stands still until it is moved, forwards or backwards; for every database too."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

# A moment with a fraction of a second: what rounds or forgets it is found out.
START = datetime(2026, 5, 4, 12, 0, 0, 250_000, tzinfo=UTC)


class ManualClock:
    def __init__(self, now: datetime = START) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def now_in(self, session: Session) -> datetime:
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Move the clock and give the new time; a negative number sets it back."""
        self._now += timedelta(seconds=seconds)
        return self._now
