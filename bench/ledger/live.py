"""An hour of storage of many live caches, posted and rolled up as a server does it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from bench.ledger.owners import add_owners
from bench.ledger.shape import MONTH
from bench.set_clock import SetClock
from billing.bookkeeping import keep_books, post_due, roll_up_posted
from billing.verify import verify
from models.session import Database

# The hour that is posted, of caches that began at any second of some hours before it.
HOUR = MONTH + timedelta(days=9)
NOW = HOUR + timedelta(hours=1, seconds=20)
_LIVES = """
UPDATE made_caches SET first = extract(epoch FROM :hour - pg_temp.at(0))::bigint - floor(6 * 3600 * pg_temp.chance(number, 7)),
                       last = extract(epoch FROM :hour - pg_temp.at(0))::bigint + 7200 + floor(9999 * pg_temp.chance(number, 8))
"""
_LIVE_CACHES = """
UPDATE caches SET state = 'ACTIVE', created_at = pg_temp.at(first), updated_at = pg_temp.at(first),
                  activated_at = pg_temp.at(first), expire_at = pg_temp.at(last), ended_at = NULL, end_reason = NULL,
                  prefix_text = '', messages = '[]', token_ids = ''
FROM made_caches WHERE made_caches.id = caches.id
"""
_LIVE_SEGMENTS = """
UPDATE storage_segments SET started_at = pg_temp.at(first), accrued_until = pg_temp.at(first), ends_at = pg_temp.at(last)
FROM made_caches WHERE made_caches.id = storage_segments.cache_id
"""


@dataclass(frozen=True, slots=True)
class Accrued:
    """seconds: until all that is due is posted. entries: that it posted, and that doing it again did."""

    caches: int
    seconds: float
    rolled_up_seconds: float
    entries: int
    entries_again: int
    again_seconds: float
    verify_seconds: float
    findings: list[str]

    @property
    def wrong(self) -> list[str]:
        again = [f"accrual again posted {self.entries_again} entries"] if self.entries_again else []
        return [*again, *self.findings]

    def as_json(self) -> dict[str, Any]:
        plain = (
            "caches",
            "entries",
            "entries_again",
            "seconds",
            "rolled_up_seconds",
            "again_seconds",
            "verify_seconds",
        )
        return {name: getattr(self, name) for name in plain}


def accrue_an_hour(database: Database, caches: int) -> Accrued:
    """In an empty database: so many caches whose storage is posted up to an hour, and then that hour."""
    with database.write() as session:
        add_owners(session, caches)
        for statement in (_LIVES, _LIVE_CACHES, _LIVE_SEGMENTS):
            session.execute(text(statement), {"hour": HOUR} if ":hour" in statement else {})
    keep_books(database, SetClock(HOUR))  # the hours before
    with database.write() as session:
        session.execute(text("ANALYZE"))
    before, clock = _count(database), SetClock(NOW)
    seconds = _timed(lambda: post_due(database, clock))
    posted = _count(database) - before
    rolled_up_seconds = _timed(lambda: roll_up_posted(database))
    again_seconds = _timed(lambda: keep_books(database, clock))
    started = time.perf_counter()
    with database.read() as session:
        findings = [f"{each.check}: {each.what}" for each in verify(session, NOW)]
    return Accrued(
        caches=caches,
        seconds=seconds,
        rolled_up_seconds=rolled_up_seconds,
        entries=posted,
        entries_again=_count(database) - before - posted,
        again_seconds=again_seconds,
        verify_seconds=time.perf_counter() - started,
        findings=findings[:20],
    )


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _count(database: Database) -> int:
    with database.read() as session:
        count: int = session.scalars(text("SELECT count(*) FROM ledger_entries")).one()
    return count
