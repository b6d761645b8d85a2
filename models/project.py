"""Projects: who owns keys and caches, and who gets the bill.

reuses_kv: whether its requests read automatic KV, and leave their own behind.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import func, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.errors import ProjectExists, ProjectNotFound
from core.ids import new_project_id
from models.base import TO_CHANGE, Base, UtcDateTime


class Project(Base):
    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    reuses_kv: Mapped[bool] = mapped_column(default=True, server_default=true())


def create_project(session: Session, name: str, now: datetime) -> Project:
    """Add a project; raises ProjectExists if the name is taken, and leaves the unit of work usable."""
    project = Project(id=new_project_id(), name=name, created_at=now)
    try:
        with session.begin_nested():
            session.add(project)
    except IntegrityError as error:
        raise ProjectExists(
            f"A project named {name!r} exists already. Choose another name.", field="name"
        ) from error
    return project


def get_project(session: Session, project_id: str) -> Project:
    project = session.get(Project, project_id)
    if project is None:
        raise _not_found(project_id)
    return project


def lock_project(session: Session, project_id: str) -> Project:
    """Hold a project until the unit ends, so that its caches can be counted and added to without a race."""
    project = session.get(Project, project_id, with_for_update=TO_CHANGE)
    if project is None:
        raise _not_found(project_id)
    return project


def share_projects(session: Session, project_ids: Iterable[str]) -> None:
    """Keep the limits and credit of projects from being set until the unit ends; others may do the same."""
    session.execute(
        select(Project.id)
        .where(Project.id.in_(list(project_ids)))
        .order_by(Project.id)
        .with_for_update(read=True, key_share=True)
    ).all()


def lock_project_alone(session: Session, project_id: str) -> Project:
    """Hold a project until the unit ends against whoever shares it too: what runs in it is on record, or waits."""
    project = session.get(Project, project_id, with_for_update=True)
    if project is None:
        raise _not_found(project_id)
    return project


def find_project_by_name(session: Session, name: str) -> Project | None:
    return session.scalars(select(Project).where(Project.name == name)).one_or_none()


def get_project_named(session: Session, id_or_name: str) -> Project:
    """Get the project that somebody means by its id or its name; raises ProjectNotFound."""
    project = session.get(Project, id_or_name) or find_project_by_name(session, id_or_name)
    if project is None:
        raise _not_found(id_or_name)
    return project


def update_project(session: Session, id_or_name: str, *, reuses_kv: bool) -> Project:
    """Say whether a project's requests read and leave automatic KV, from the next one on."""
    project = get_project_named(session, id_or_name)
    project.reuses_kv = reuses_kv
    session.flush()
    return project


def first_creation(session: Session) -> datetime | None:
    """When the first of all projects was created; None where there is none. Nothing can be owed from before."""
    return session.scalars(select(func.min(Project.created_at))).one()


def list_projects(session: Session) -> Sequence[Project]:
    """List all projects by name."""
    return session.scalars(select(Project).order_by(Project.name)).all()


def _not_found(project_id: str) -> ProjectNotFound:
    return ProjectNotFound(f"There is no project {project_id}.", field="project")
