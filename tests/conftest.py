"""A database for each test, on SQLite and on PostgreSQL: a test that asks for one runs on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from models.schema import upgrade
from models.session import Database, sqlite_url
from tests.databases import Kind, quick_folder
from tests.models.rows import clear, open_database
from tests.postgresql import PostgreSQL, running_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server of our own, started by the first test that needs it."""
    with running_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: PostgreSQL) -> Iterator[Database]:
    """One database for all tests, one after the other: to make and to open one takes ten times as long as to empty it."""
    database = Database(postgresql.create(), pool_size=24)
    upgrade(database)
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
def database(kind: Kind, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database that has every table, and no row."""
    if kind is Kind.POSTGRESQL:
        database: Database = request.getfixturevalue("migrated_postgresql")
        clear(database)
        yield database
        return
    folder: Path = request.getfixturevalue("memory")
    database = open_database(folder / "test.sqlite3", pool_size=24)
    yield database
    database.dispose()


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
