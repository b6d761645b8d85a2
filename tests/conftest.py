"""A database for each test, on SQLite and on PostgreSQL: a test that asks for one runs on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from bench.database import clear
from models.schema import upgrade
from models.session import Database, sqlite_url
from tests.databases import Kind, quick_folder
from tests.models.rows import open_database
from tests.postgresql import PostgreSQL, running_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server of our own, started by the first test that needs it."""
    with running_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: PostgreSQL) -> Iterator[Database]:
    database = Database(postgresql.create(), pool_size=24)
    upgrade(database)
    yield database
    database.dispose()


@pytest.fixture(scope="session")
def migrated_sqlite() -> Iterator[Database]:
    with quick_folder() as folder:
        database = open_database(folder / "test.sqlite3", pool_size=24)
        yield database
        database.dispose()


@pytest.fixture(params=Kind)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which database the test runs on; whoever asks for it runs on each."""
    kind: Kind = request.param
    return kind


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for SQLite's files."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def database(kind: Kind, request: pytest.FixtureRequest) -> Database:
    """A database that has every table, and no row.

    All tests share it, one after the other: to make and open one, and to prepare its statements, takes longer than most
    of them do.
    """
    database: Database = request.getfixturevalue(f"migrated_{kind}")
    clear(database)
    return database


@pytest.fixture
def empty_url(kind: Kind, request: pytest.FixtureRequest) -> Iterator[URL]:
    """Where there is a database without any table, for the test alone."""
    if kind is Kind.SQLITE:
        folder: Path = request.getfixturevalue("memory")
        yield sqlite_url(folder / "empty.sqlite3")
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    url = server.create()
    yield url
    server.drop(url)
