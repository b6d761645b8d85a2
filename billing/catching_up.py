"""Doing much in units that are small enough for others to come in between."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from models.session import Database

# SQLite lets nobody queue: who waits for the one writer asks again every tenth of a second at the latest.
_PAUSE_SECONDS = 0.11
_At = TypeVar("_At")


@dataclass(frozen=True, slots=True)
class Unit(Generic[_At]):
    """What one unit of work came to.

    reached: behind which the next one goes on. is_last: nothing is left there. passed_over: what cannot be done, and why.
    """

    reached: _At
    is_last: bool
    passed_over: dict[str, str] = field(default_factory=dict)


def in_units(
    database: Database, start: _At, work: Callable[[Session, _At], Unit[_At]], is_stopping: Callable[[], bool]
) -> dict[str, str]:
    """Do a unit after the other until the last, or until it is to stop; gives all that they passed over."""
    reached, passed_over = start, dict[str, str]()
    while not is_stopping():
        with database.write() as session:
            unit = work(session, reached)
        reached = unit.reached
        passed_over |= unit.passed_over
        if unit.is_last:
            break
        if database.has_one_writer:
            time.sleep(_PAUSE_SECONDS)
    return passed_over
