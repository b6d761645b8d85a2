"""Where PostgreSQL is, whether it will do, and having a database on it to oneself."""

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, text

from bench.database import clear
from core.errors import DatabaseLocked, SettingsInvalid
from models.postgresql import postgresql_url
from models.session import Database
from tests.postgresql import PostgreSQL


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


class TestAddress:
    @pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
    def test_it_is_read_as_postgresql_writes_it(self, scheme: str) -> None:
        url = postgresql_url(f"{scheme}://me:pa%40ss@db.example:5433/books?sslmode=verify-full")
        assert (url.drivername, url.username, url.password) == ("postgresql+psycopg", "me", "pa@ss")
        assert (url.host, url.port, url.database) == ("db.example", 5433, "books")
        assert url.query == {"sslmode": "verify-full"}

    @pytest.mark.parametrize(
        "address",
        ["", "pass", "mysql://me:pass@h/d", "postgresql://me:pass@h", "postgresql://me:pass@h:port/d"],
    )
    def test_what_is_none_is_refused_without_being_quoted(self, address: str) -> None:
        with pytest.raises(SettingsInvalid, match="HEADSTART_DATABASE_URL: it ") as caught:
            postgresql_url(address)
        assert caught.value.field == "database_url"
        assert "pass@" not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"database": "absent"}, "does not exist"),
            ({"username": "stranger"}, "does not exist"),
            ({"query": {"host": "/nowhere"}}, "/nowhere"),
            ({"query": {"nonsense": "1"}}, "nonsense"),
        ],
    )
    def test_a_database_that_cannot_be_opened_is_refused_with_the_reason(
        self, database: Database, changes: dict[str, Any], reason: str
    ) -> None:
        url = _url(database).set(**{"password": "hidden word"} | changes)
        with pytest.raises(SettingsInvalid, match=f"cannot be opened.*{reason}") as caught:
            Database(url, pool_size=1).check_usable()
        assert "hidden" not in caught.value.message
        assert "\n" not in caught.value.message

    def test_a_database_that_cannot_hold_all_text_is_refused(self, postgresql: PostgreSQL) -> None:
        url = postgresql.create("ENCODING 'SQL_ASCII' LOCALE 'C' LOCALE_PROVIDER libc")
        narrow = Database(url, pool_size=1)
        with pytest.raises(SettingsInvalid, match="SQL_ASCII"):
            narrow.check_usable()
        narrow.dispose()
        postgresql.drop(url)

    def test_the_address_may_say_otherwise_of_a_connection(self, database: Database) -> None:
        mine = Database(_url(database).update_query_dict({"application_name": "mine"}), pool_size=1)
        for each, name in ((mine, "mine"), (database, "headstart")):
            with each.read() as session:
                assert session.scalars(text("SHOW application_name")).one() == name
        mine.dispose()


class TestSoleUse:
    def test_a_second_server_is_refused_and_told_which_database(self, own: Database) -> None:
        other = Database(_url(own), pool_size=1)
        name = str(_url(own).database)
        with own.sole_use(), pytest.raises(DatabaseLocked, match=name), other.sole_use():
            pass
        with other.sole_use():
            pass
        other.dispose()

    def test_it_leaves_the_pool_whole(self, own: Database) -> None:
        with (
            own.sole_use(),
            own.write() as one,
            own.write() as two,
            own.write() as three,
            own.write() as four,
        ):
            for session in (one, two, three, four):
                session.execute(text("SELECT 1"))

    def test_it_ends_with_its_connection(self, own: Database, postgresql: PostgreSQL) -> None:
        other = Database(_url(own), pool_size=1)
        with own.sole_use():
            postgresql.disconnect(_url(own))  # as the process's end would
            with other.sole_use():
                pass
        other.dispose()


def _url(database: Database) -> URL:
    return database._engine.url
