"""What the first start of an embedded server creates: the project "default" and two keys, shown once."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from cli.key_making import make_key
from core.clock import Clock, instant
from core.secret import RootSecret
from models.api_key import Scope
from models.project import create_project, list_projects


@dataclass(frozen=True, slots=True)
class FirstKeys:
    """Shown keys; only their keyed hashes are stored."""

    project_key: str
    operator_key: str


def create_first_keys(session: Session, clock: Clock, secret: RootSecret) -> FirstKeys | None:
    """Create them where there is no project yet; None where there is."""
    if list_projects(session):
        return None
    project = create_project(session, "default", instant(session, clock))
    everything = frozenset(Scope)
    return FirstKeys(
        project_key=make_key(
            session, clock, secret, project_id=project.id, name="first key of the project", scopes=everything
        ),
        operator_key=make_key(
            session, clock, secret, project_id=None, name="first key of the operator", scopes=everything
        ),
    )
