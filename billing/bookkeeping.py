"""Bringing the books up to date, in units of work of their own: post what is due, and roll it up."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session

from billing.accrual import accrue
from billing.usage import charge_unposted
from core.clock import Clock, instant
from models.ledger_entry import newest_settled_id
from models.ledger_hour import roll_up, watermark
from models.session import Database

# Segments of a unit: they cannot end or be extended while it lasts, which is a fraction of a second.
_BATCH = 2_000
# While the database works on one unit, another is computed.
_UNITS_AT_ONCE = 2
_ENTRIES = 20_000


def keep_books(database: Database, clock: Clock, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Post all that is due, and roll it up; whoever else does so at the same time changes no result."""
    post_due(database, clock, is_stopping)
    roll_up_posted(database, is_stopping)


def post_due(database: Database, clock: Clock, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Charge what is owed and not posted, and storage up to the last whole hour."""

    def repeat(unit: Callable[[Session], int]) -> None:
        count = _BATCH
        while count == _BATCH and not is_stopping():
            with database.write() as session:
                count = unit(session)

    def accrue_all() -> None:
        repeat(lambda session: accrue(session, instant(session, clock), _BATCH))

    repeat(lambda session: charge_unposted(session, instant(session, clock), _BATCH))
    with ThreadPoolExecutor(_UNITS_AT_ONCE, "accrual") as pool:
        for future in [pool.submit(accrue_all) for _ in range(_UNITS_AT_ONCE)]:
            future.result()


def roll_up_posted(database: Database, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Add the entries that are not rolled up yet to their hours. No report waits for it."""
    with database.write() as session:
        newest = newest_settled_id(session)
    is_behind = True
    while is_behind and not is_stopping():
        with database.write() as session:
            reached = min(newest, watermark(session) + _ENTRIES)
            roll_up(session, reached)
        is_behind = reached < newest
