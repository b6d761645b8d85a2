import pytest

from core.errors import ProjectExists, ProjectNotFound
from models.project import (
    create_project,
    find_project_by_name,
    get_project,
    list_projects,
    lock_project,
    update_project,
)
from models.session import Database
from tests.fakes.clock import START


def test_a_project_is_found_by_id_and_by_name(database: Database) -> None:
    with database.write() as session:
        project = create_project(session, "one", START)
        assert get_project(session, project.id) is project
        assert lock_project(session, project.id) is project
        assert find_project_by_name(session, "one") is project
        assert find_project_by_name(session, "two") is None


def test_a_project_that_does_not_exist_is_not_found(database: Database) -> None:
    with database.write() as session:
        for find in (get_project, lock_project):
            with pytest.raises(ProjectNotFound, match="proj_none"):
                find(session, "proj_none")


def test_a_name_is_given_once_and_the_unit_goes_on(database: Database) -> None:
    with database.write() as session:
        create_project(session, "one", START)
        with pytest.raises(ProjectExists, match="'one'"):
            create_project(session, "one", START)
        create_project(session, "two", START)
    with database.read() as session:
        assert [project.name for project in list_projects(session)] == ["one", "two"]


def test_projects_are_listed_by_name(database: Database) -> None:
    with database.write() as session:
        for name in ("b", "c", "a"):
            create_project(session, name, START)
        assert [project.name for project in list_projects(session)] == ["a", "b", "c"]


def test_a_project_reuses_kv_until_it_is_told_not_to(database: Database) -> None:
    with database.write() as session:
        one, two = (create_project(session, name, START) for name in ("one", "two"))
        assert (one.reuses_kv, two.reuses_kv) == (True, True)
    with database.write() as session:
        assert update_project(session, "one", reuses_kv=False).id == one.id
    with database.read() as session:
        assert [project.reuses_kv for project in list_projects(session)] == [False, True]
    with database.write() as session:
        update_project(session, one.id, reuses_kv=True)
    with database.read() as session:
        assert get_project(session, one.id).reuses_kv


def test_a_project_that_does_not_exist_is_not_updated(database: Database) -> None:
    with pytest.raises(ProjectNotFound, match="nobody"), database.write() as session:
        update_project(session, "nobody", reuses_kv=False)
