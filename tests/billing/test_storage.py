import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from billing import storage
from models.session import Database
from models.storage_segment import StorageSegment, lock_segment
from tests.billing.rows import MODEL, T0, add_cache, add_project, after, key_of


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        project = add_project(session, "p")
        add_cache(session, project, "c", start=T0, end=after(3600))
        return project


def segment(session: Session) -> StorageSegment:
    found = lock_segment(session, "c")
    assert found is not None
    return found


class TestLastPosted:
    def test_is_the_activation_at_first_and_nothing_for_what_was_never_active(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            assert storage.last_event(session, "c") == T0
            assert storage.last_event(session, "other") is None


class TestMoveEnd:
    @pytest.mark.parametrize("seconds", [7200, 10, 0])
    def test_moves_either_way(self, database: Database, project: str, seconds: float) -> None:
        with database.write() as session:
            storage.move_end(session, "c", after(seconds))
        with database.write() as session:
            assert segment(session).ends_at == after(seconds)

    def test_never_before_the_start(self, database: Database, project: str) -> None:
        with pytest.raises(IntegrityError), database.write() as session:
            storage.move_end(session, "c", after(-1))


class TestClose:
    def test_pulls_the_end_in(self, database: Database, project: str) -> None:
        with database.write() as session:
            storage.close(session, "c", after(10))
            assert segment(session).ends_at == after(10)

    def test_leaves_an_end_that_has_passed(self, database: Database, project: str) -> None:
        with database.write() as session:
            storage.close(session, "c", after(3601))
            assert segment(session).ends_at == after(3600)


class TestOpenSegment:
    def test_a_cache_has_one_life(self, database: Database, project: str) -> None:
        with pytest.raises(IntegrityError), database.write() as session:
            storage.open_segment(
                session,
                cache_id="c",
                project_id=project,
                key_id=key_of(project),
                model=MODEL,
                token_count=1,
                started_at=after(5000),
                ends_at=after(6000),
            )
