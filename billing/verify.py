"""Reconciliation: proves that the books agree with what happened, to the nano, and names everything that does not.

It reads one snapshot and changes nothing. Where the books are right it finds nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from billing import checks
from billing.recompute import compare, posted, recompute
from billing.spending_checks import SPENDING_CHECKS
from models.project import list_projects

Progress = Callable[[str, float], None]
EVER = datetime(1970, 1, 1, tzinfo=UTC)
_CHECKS = (
    checks.segments_are_lives,
    checks.hits_are_of_living_caches,
    checks.owed_usage_is_posted,
    checks.hours_are_sums,
    checks.closed_periods_are_sums,
    checks.corrections_leave_something,
    checks.meters_are_known,
    *SPENDING_CHECKS,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the check that found it, and what it is."""

    check: str
    what: str


def verify(
    session: Session,
    now: datetime,
    since: datetime = EVER,
    progress: Progress = lambda _what, _fraction: None,
) -> Iterator[Finding]:
    """Look for whatever does not agree, one check after the other.

    since: the hour from which on every charge is recomputed; all else is looked at whole. progress: told how far it is, from 0
    to 1.
    """
    projects = list_projects(session)
    steps = len(_CHECKS) + len(projects)
    for index, check in enumerate(_CHECKS):
        progress(check.__name__.replace("_", " "), index / steps)
        yield from (Finding(check.__name__, what) for what in check(session))
    yield from (Finding("storage_is_posted", what) for what in checks.storage_is_posted(session, now))
    for index, project in enumerate(projects, len(_CHECKS)):
        progress(f"charges of {project.name}", index / steps)
        try:
            differences = list(
                compare(posted(session, project.id, since), recompute(session, project.id, since))
            )
        except LookupError as error:  # a price is gone, or there are two
            differences = [f"{project.id}: {error}"]
        yield from (Finding("ledger_is_recomputed", what) for what in differences)
    progress("done", 1.0)
