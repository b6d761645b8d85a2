"""Bringing the books up to date, in units of work of their own: post what is due, and roll it up."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session

from billing.accrual import accrue
from billing.catching_up import Unit, in_units
from billing.usage import charge_unposted
from core.clock import Clock, instant
from models.ledger_entry import newest_settled_id
from models.ledger_hour import roll_up, watermark
from models.session import Database
from models.storage_segment import Place
from models.usage import find_unposted

# While the database works on one unit, another is computed.
_UNITS_AT_ONCE = 2
_USAGE_ROWS = 500
_ENTRIES = 20_000


def keep_books(
    database: Database, clock: Clock, is_stopping: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """Post all that is due, and roll it up; whoever else does so at the same time changes no result.

    Gives what cannot be posted, and why.
    """
    passed_over = post_due(database, clock, is_stopping)
    roll_up_posted(database, is_stopping)
    return passed_over


def post_due(
    database: Database, clock: Clock, is_stopping: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """Charge what is owed and not posted, and storage up to the last whole hour; gives what cannot be, and why."""

    def charge(session: Session, after: str) -> Unit[str]:
        return charge_unposted(session, instant(session, clock), _USAGE_ROWS, after)

    def accrue_next(session: Session, after: Place | None) -> Unit[Place | None]:
        return accrue(session, instant(session, clock), after)

    # Looked for first: it is there only in a database from before the ledger, and nobody waits for who reads.
    with database.read() as session:
        is_owed = find_unposted(session) is not None
    passed_over = in_units(database, "", charge, is_stopping) if is_owed else {}
    at_once = 1 if database.has_one_writer else _UNITS_AT_ONCE
    with ThreadPoolExecutor(at_once, "accrual") as pool:
        for future in [
            pool.submit(in_units, database, None, accrue_next, is_stopping) for _ in range(at_once)
        ]:
            passed_over |= future.result()
    return passed_over


def roll_up_posted(database: Database, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Add the entries that are not rolled up yet to their hours. No report waits for it."""
    with database.write() as session:
        newest = newest_settled_id(session)

    def add(session: Session, _: int) -> Unit[int]:
        reached = min(newest, watermark(session) + _ENTRIES)
        roll_up(session, reached)
        return Unit(reached, is_last=reached >= newest)

    in_units(database, 0, add, is_stopping)
