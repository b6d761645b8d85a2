"""Reconciliation: proves that the books agree with what happened, to the nano, and names everything that does not.

It reads one snapshot and changes nothing. Where the books are right it finds nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from billing import checks, entry_checks
from billing.correction_checks import corrections_are_exact
from billing.periods import Period
from billing.rating import HOUR
from billing.recompute import compare, posted, recompute, told
from billing.report import unposted_storage
from billing.spending_checks import SPENDING_CHECKS
from models.project import list_projects
from models.refusals import as_unavailable

Progress = Callable[[str, float], None]
EVER = datetime(1970, 1, 1, tzinfo=UTC)
_CHECKS = (
    checks.segments_are_lives,
    checks.hits_are_of_living_caches,
    checks.owed_usage_is_posted,
    checks.hours_are_sums,
    entry_checks.no_entry_is_missing,
    entry_checks.meters_are_known,
    entry_checks.accounts_are_of_their_kind,
    corrections_are_exact,
    entry_checks.closed_periods_are_sums,
    entry_checks.entries_are_billed_in_their_month,
    *SPENDING_CHECKS,
)
_TIMELY_CHECKS = (checks.storage_is_posted, checks.reserved_usage_is_settled)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the check that found it, and what it is."""

    check: str
    what: str


# One thing to look for, named for who waits for it.
Look = tuple[str, Callable[[Session], Iterable[Finding]]]


def verify(
    session: Session,
    now: datetime,
    since: datetime = EVER,
    progress: Progress = lambda _what, _fraction: None,
) -> Iterator[Finding]:
    """Look for whatever does not agree, one look after the other.

    since: the hour from which on every charge is recomputed; all else is looked at whole. progress: told how far it is, from 0
    to 1.
    """
    looks = list_looks(session, now, since)
    for index, look in enumerate(looks):
        progress(look[0], index / len(looks))
        yield from take(session, look)
    progress("done", 1.0)


def list_looks(session: Session, now: datetime, since: datetime) -> list[Look]:
    """All that has to be looked at. Each agrees with itself in any snapshot of its own, from `now` on."""
    return [
        *((check.__name__, partial(_named, check.__name__, check)) for check in _CHECKS),
        *(
            (check.__name__, partial(_named, check.__name__, partial(check, now=now)))
            for check in _TIMELY_CHECKS
        ),
        *(
            (f"charges of {project.name}", partial(_charges, project_id=project.id, since=since, now=now))
            for project in list_projects(session)
        ),
    ]


def take(session: Session, look: Look) -> list[Finding]:
    """What is found until a look fails, and that it did: what is wrong for one must hide nothing from the next."""
    title, find = look
    found: list[Finding] = []
    try:
        with session.begin_nested():  # PostgreSQL goes on after an error only from before it
            found.extend(find(session))
    except Exception as error:
        if isinstance(error, DBAPIError) and as_unavailable(error, writing=False) is not None:
            raise
        found.append(Finding(title, f"it could not look at everything: {type(error).__name__}: {error}"))
    return found


def _named(check: str, find: Callable[[Session], Iterable[str]], session: Session) -> Iterator[Finding]:
    return (Finding(check, what) for what in find(session))


def _charges(session: Session, project_id: str, since: datetime, now: datetime) -> Iterator[Finding]:
    """Every charge of a project a second time, and what its report tells of storage that is not posted yet."""
    again = recompute(session, project_id, since, now)
    in_ledger = compare(posted(session, project_id, since), again.posted, "posted")
    for what in (*again.unpriced, *in_ledger):
        yield Finding("ledger_is_recomputed", what)
    unposted = unposted_storage(session, Period(since, now + HOUR), project_id, now)
    for what in compare(told(unposted, since), again.provisional, "told"):
        yield Finding("provisional_is_recomputed", what)
