import sqlite3
import threading
import traceback
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

import models.session
from core.errors import Unavailable
from models.cache import insert_cache
from models.project import create_project, find_project_by_name, list_projects
from models.session import Database, sqlite_url
from tests.fakes.clock import START
from tests.models.rows import add_customer, add_key, make_cache, open_database


class TestWrite:
    def test_a_unit_is_committed_on_leaving(self, database: Database) -> None:
        with database.write() as session:
            create_project(session, "one", START)
        with database.read() as session:
            assert find_project_by_name(session, "one") is not None

    def test_a_unit_that_raises_leaves_nothing(self, database: Database) -> None:
        def half_a_unit() -> None:
            with database.write() as session:
                create_project(session, "one", START)
                raise RuntimeError("halfway")

        with pytest.raises(RuntimeError, match="halfway"):
            half_a_unit()
        with database.read() as session:
            assert list_projects(session) == []

    def test_rows_stay_usable_after_their_unit(self, database: Database) -> None:
        with database.write() as session:
            project = create_project(session, "one", START)
        assert project.name == "one"

    def test_two_units_that_read_and_then_write_lose_nothing_on_sqlite(self, tmp_path: Path) -> None:
        """With the driver's own transactions both read 0, and one of each pair of increments is lost."""
        database = open_database(tmp_path / "counted.sqlite3")
        with database.write() as session:
            session.execute(text("CREATE TABLE counter (n INTEGER NOT NULL)"))
            session.execute(text("INSERT INTO counter VALUES (0)"))

        def count_up() -> None:
            for _ in range(20):
                with database.write() as session:
                    n = session.scalars(text("SELECT n FROM counter")).one()
                    session.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})

        threads = [threading.Thread(target=count_up) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with database.read() as session:
            assert session.scalars(text("SELECT n FROM counter")).one() == 80
        database.dispose()

    def test_an_sqlite_lock_that_is_held_too_long_is_unavailable_not_an_error_of_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(models.session, "_BUSY_MILLISECONDS", 50)
        database = open_database(tmp_path / "busy.sqlite3")
        with database.write(), pytest.raises(Unavailable) as caught, database.write():
            pass
        assert caught.value.retry_after_seconds == 1
        database.dispose()

    def test_a_full_disk_under_sqlite_is_unavailable_and_changes_nothing(self, tmp_path: Path) -> None:
        database = open_database(tmp_path / "full.sqlite3")

        def fill_up() -> None:
            with database.write() as session:
                create_project(session, "first", START)
                session.execute(text("PRAGMA max_page_count = 1"))  # SQLite takes what the file has for it
                session.execute(text("CREATE TABLE filler AS SELECT zeroblob(10000000)"))

        with pytest.raises(Unavailable, match="cannot be written") as caught:
            fill_up()
        assert caught.value.retry_after_seconds == 10
        with database.read() as session:
            assert list_projects(session) == []
        database.dispose()

    def test_other_database_errors_keep_their_name_and_tell_no_values(self, database: Database) -> None:
        with pytest.raises(DBAPIError, match="nowhere") as caught, database.write() as session:
            session.execute(text("SELECT * FROM nowhere WHERE a = :a"), {"a": "what a customer sent"})
        assert "customer" not in str(caught.value)

    def test_a_row_that_breaks_a_rule_is_quoted_nowhere(self, database: Database) -> None:
        """PostgreSQL quotes it whole under DETAIL; what is logged is the error with all its causes."""
        with database.write() as session:
            customer = add_customer(session, "one")
        with (
            pytest.raises(IntegrityError, match="fencing_token_positive") as caught,
            database.write() as session,
        ):
            insert_cache(session, make_cache(customer, prefix_text="WORDS".lower(), fencing_token=0))
        assert "words" not in "".join(traceback.format_exception(caught.value))

    def test_foreign_keys_hold(self, database: Database) -> None:
        with pytest.raises(IntegrityError), database.write() as session:
            add_key(session, "proj_none")


class TestRead:
    def test_a_unit_cannot_write(self, database: Database) -> None:
        with pytest.raises(DBAPIError, match=r"read-?only"), database.read() as session:
            session.execute(text("DELETE FROM projects"))

    def test_a_connection_that_was_read_with_can_write_afterwards(self, tmp_path: Path) -> None:
        database = open_database(tmp_path / "one.sqlite3", pool_size=1)
        with database.read() as session:
            assert list_projects(session) == []
        with database.write() as session:
            create_project(session, "one", START)
        database.dispose()

    def test_a_unit_sees_one_snapshot_and_is_not_blocked_by_a_writer(self, database: Database) -> None:
        with database.read() as reading:
            assert list_projects(reading) == []
            with database.write() as writing:
                create_project(writing, "one", START)
            reading.expire_all()
            assert list_projects(reading) == []


class TestScrubOnSqlite:
    def test_nothing_of_a_removed_row_is_left_on_disk(self, tmp_path: Path) -> None:
        database = open_database(tmp_path / "scrubbed.sqlite3")
        secret = "the customer's own words " * 400  # long enough to spill over several pages
        with database.write() as session:
            session.execute(text("CREATE TABLE words (w TEXT)"))
            session.execute(text("INSERT INTO words VALUES (:w)"), {"w": secret})
        assert _on_disk(tmp_path, "customer's own words")
        with database.write() as session:
            session.execute(text("UPDATE words SET w = NULL"))
        assert database.scrub()
        assert not _on_disk(tmp_path, "customer's own words")
        database.dispose()

    def test_a_reader_in_its_way_only_puts_it_off(self, tmp_path: Path) -> None:
        database = open_database(tmp_path / "read.sqlite3")
        with database.read() as session:
            list_projects(session)
            with database.write() as writing:
                create_project(writing, "one", START)
            assert not database.scrub()
        assert database.scrub()
        database.dispose()


def test_sqlite_has_a_commit_on_disk_when_it_returns(tmp_path: Path) -> None:
    database = open_database(tmp_path / "kept.sqlite3")
    with database.write() as session:
        create_project(session, "one", START)
        mode = session.scalars(text("PRAGMA synchronous")).one()
    assert mode == 2  # FULL
    database.dispose()


def test_a_path_with_odd_signs_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c d%20.sqlite3"
    database = open_database(path)
    database.dispose()
    assert path.exists()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM projects").fetchone() == (0,)
    connection.close()
    assert sqlite_url(path).database == str(path)


def _on_disk(folder: Path, words: str) -> bool:
    return any(words.encode() in path.read_bytes() for path in folder.iterdir())
