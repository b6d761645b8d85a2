"""What a project's spending is subject to: limits, credit, or, as for most, nothing.

Whoever counts or holds anything in a project asks for its terms first. That is what makes figures exact: terms stay while a
unit has them, only one unit at a time counts in a project that has any, and whoever sets them waits for all that runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.credit import Credit, find_terms
from models.limit import WHOLE, Limit
from models.project import lock_project, lock_project_alone, share_projects

_KNOWN = "terms"


@dataclass(frozen=True, slots=True)
class Terms:
    """limits: of the project and of its keys. credit: as far as the project was ever given any, or must pay before."""

    project_id: str
    limits: tuple[Limit, ...]
    credit: Credit | None

    @property
    def is_prepaid(self) -> bool:
        return self.credit is not None and self.credit.is_prepaid

    @property
    def is_holding(self) -> bool:
        """Whether what may come to be owed is held: credit alone refuses nothing, so nothing is held against it."""
        return bool(self.limits) or self.is_prepaid

    def limits_on(self, key_id: str) -> list[Limit]:
        """What a key's charges count against: the project's limit, then its own."""
        return [limit for whose in (WHOLE, key_id) for limit in self.limits if limit.key_id == whose]


def lock_terms(session: Session, project_id: str) -> Terms | None:
    """Give the terms, None where there are none, and keep them, and all that is counted by them, until the unit ends.

    Asked again in a unit, it costs nothing.
    """
    known = _known(session)
    if project_id not in known:
        lock_terms_of(session, [project_id])
    return known[project_id]


def lock_terms_of(session: Session, project_ids: Iterable[str]) -> None:
    """Lock the terms of several projects before a unit turns to each: in one order, so that two units never cross."""
    known = _known(session)
    asked = sorted(set(project_ids) - known.keys())
    if not asked:
        return
    share_projects(session, asked)
    found = find(session, asked)
    for project_id in sorted(found):
        lock_project(session, project_id)
    known.update({project_id: found.get(project_id) for project_id in asked})


def lock_alone(session: Session, project_id: str) -> Terms | None:
    """Hold a project against all that counts in it, to change its terms; gives those that it has."""
    lock_project_alone(session, project_id)
    forget(session, project_id)
    return find(session, [project_id]).get(project_id)


def find(session: Session, project_ids: Sequence[str]) -> dict[str, Terms]:
    """Read the terms as they are now, without keeping them; projects that have none are left out."""
    return {
        project_id: Terms(project_id, tuple(limits), credit)
        for project_id, (credit, limits) in find_terms(session, project_ids).items()
    }


def forget(session: Session, project_id: str) -> None:
    """The unit has set other terms: the next that asks reads them."""
    _known(session).pop(project_id, None)


def _known(session: Session) -> dict[str, Terms | None]:
    known: dict[str, Terms | None] = session.info.setdefault(_KNOWN, {})
    return known
