"""Bringing the books up to date, in units of work of their own: post what is due, and roll it up."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from billing.accrual import accrue
from billing.usage import charge_unposted
from core.clock import Clock, instant
from models.ledger_entry import newest_settled_id
from models.ledger_hour import roll_up, watermark
from models.session import Database

_BATCH = 500
_ENTRIES = 20_000


def keep_books(database: Database, clock: Clock, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Post all that is due, and roll it up; whoever else does so at the same time changes no result."""

    def repeat(unit: Callable[[Session], int]) -> None:
        count = _BATCH
        while count == _BATCH and not is_stopping():
            with database.write() as session:
                count = unit(session)

    repeat(lambda session: charge_unposted(session, instant(session, clock), _BATCH))
    repeat(lambda session: accrue(session, instant(session, clock), _BATCH))
    with database.write() as session:
        newest = newest_settled_id(session)
    is_behind = True
    while is_behind and not is_stopping():
        with database.write() as session:
            reached = min(newest, watermark(session) + _ENTRIES)
            roll_up(session, reached)
        is_behind = reached < newest
