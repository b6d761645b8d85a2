"""What each database refuses is told in our words: whether to try again, and nothing that a customer sent."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, text
from sqlalchemy.exc import DBAPIError

import models.postgresql
from bench.database import clear
from core.errors import Unavailable
from models.project import create_project, list_projects, lock_project
from models.session import Database
from tests.fakes.clock import START
from tests.models.rows import add_customer, add_key, open_database
from tests.postgresql import PostgreSQL

# What the server would say in the words of its own.
RAISE = "DO $$ BEGIN RAISE EXCEPTION 'no more' USING ERRCODE = '{}', DETAIL = 'what a ' || 'customer sent'; END $$"


@pytest.fixture
def database(migrated_postgresql: Database) -> Database:
    clear(migrated_postgresql)
    return migrated_postgresql


@pytest.fixture
def own(postgresql: PostgreSQL) -> Iterator[Database]:
    """A database that the test may maltreat."""
    url = postgresql.create()
    database = Database(url, pool_size=2)
    yield database
    database.dispose()
    postgresql.drop(url)


class TestPostgresql:
    @pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57014"])
    def test_what_is_over_in_a_moment_is_to_be_tried_again(self, database: Database, state: str) -> None:
        for unit in (database.read, database.write):
            with pytest.raises(Unavailable, match="busy") as caught, unit() as session:
                session.execute(text(RAISE.format(state)))
            assert caught.value.retry_after_seconds == 1

    @pytest.mark.parametrize("state", ["53100", "53200", "53300", "58030", "25006"])
    def test_a_database_that_takes_nothing_is_unavailable(self, database: Database, state: str) -> None:
        with (
            pytest.raises(Unavailable, match=r"cannot be written \(no more\)") as caught,
            database.write() as session,
        ):
            session.execute(text(RAISE.format(state)))
        assert caught.value.retry_after_seconds == 10

    @pytest.mark.parametrize("state", ["08006", "57P01", "57P03", "25P03"])
    def test_a_database_that_goes_away_is_unavailable(self, database: Database, state: str) -> None:
        with pytest.raises(Unavailable, match="does not answer") as caught, database.write() as session:
            session.execute(text(RAISE.format(state)))
        assert caught.value.retry_after_seconds == 1

    @pytest.mark.parametrize("state", ["22012", "42P01", "P0001"])
    def test_what_is_our_own_fault_stays_so_without_values(self, database: Database, state: str) -> None:
        with pytest.raises(DBAPIError, match="no more") as caught, database.write() as session:
            session.execute(text(RAISE.format(state)))
        assert "a customer sent" not in f"{caught.value} {caught.value.orig} {caught.value.orig!r}"

    def test_connections_that_were_cut_fail_one_unit_and_no_more(
        self, own: Database, postgresql: PostgreSQL
    ) -> None:
        def work() -> None:
            with own.write() as session:
                postgresql.disconnect(session.get_bind().engine.url)
                session.execute(text("SELECT 1"))

        with pytest.raises(Unavailable, match="does not answer"):
            work()
        with own.read() as session:
            session.execute(text("SELECT 1"))

    def test_connections_that_were_cut_while_they_lay_waiting_fail_none(
        self, own: Database, postgresql: PostgreSQL
    ) -> None:
        with own.read() as session:
            url = session.get_bind().engine.url
        postgresql.disconnect(url)
        with own.write() as session:
            session.execute(text("SELECT 1"))

    def test_a_server_that_is_not_there_is_unavailable(self, postgresql: PostgreSQL) -> None:
        gone = Database(
            URL.create("postgresql+psycopg", host=str(postgresql.folder / "gone"), database="x"), 1
        )
        for unit in (gone.read, gone.write):
            with pytest.raises(Unavailable, match="does not answer"), unit() as session:
                list_projects(session)

    def test_a_database_that_was_set_to_read_only_is_unavailable(self, own: Database) -> None:
        with own.write() as session:
            session.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
        with pytest.raises(Unavailable, match="read-only"), own.write() as session:
            session.execute(text("CREATE TABLE t (n INTEGER)"))


def test_what_the_driver_of_sqlite_refuses_stays_our_own_fault(tmp_path: Path) -> None:
    database = open_database(tmp_path / "data.sqlite3")
    for unit in (database.read, database.write):
        with pytest.raises(DBAPIError, match="not supported"), unit() as session:
            session.connection().exec_driver_sql("SELECT ?", ({},))
    database.dispose()


class TestLocksOfPostgresql:
    def test_a_lock_that_is_held_too_long_is_unavailable(
        self, postgresql: PostgreSQL, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(models.postgresql, "_LOCK_MILLISECONDS", 50)
        impatient = Database(_url(database), pool_size=1)
        with database.write() as session:
            project_id = create_project(session, "one", START).id
        with database.write() as holding:
            lock_project(holding, project_id)
            with pytest.raises(Unavailable, match="busy"), impatient.write() as session:
                lock_project(session, project_id)
        impatient.dispose()

    def test_a_deadlock_fails_one_of_two_and_is_to_be_tried_again(self, database: Database) -> None:
        with database.write() as session:
            ids = [create_project(session, name, START).id for name in ("one", "two")]
        have_both = threading.Barrier(2)
        refused: list[Unavailable] = []

        def lock(first: str, second: str) -> None:
            try:
                with database.write() as session:
                    lock_project(session, first)
                    have_both.wait(10)
                    lock_project(session, second)
            except Unavailable as error:
                refused.append(error)

        threads = [threading.Thread(target=lock, args=order) for order in (ids, ids[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [error.retry_after_seconds for error in refused] == [1]

    def test_a_project_that_is_held_can_be_referred_to(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A foreign key is checked under a lock of its own, for which FOR UPDATE would have to end first."""
        monkeypatch.setattr(models.postgresql, "_LOCK_MILLISECONDS", 500)
        other = Database(_url(database), pool_size=1)
        with database.write() as session:
            project_id = add_customer(session, "one").project_id
        with database.write() as holding:
            lock_project(holding, project_id)
            with other.write() as session:
                add_key(session, project_id)
        other.dispose()


def _url(database: Database) -> URL:
    return database._engine.url
