"""A database for each test, on SQLite and on PostgreSQL: a test that asks for one runs on both."""

import shutil
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
from sqlalchemy import URL

from models.schema import upgrade
from models.session import Database, sqlite_url
from tests.models.rows import clear, open_database
from tests.postgresql import PostgreSQL, running_postgresql

_IN_MEMORY = Path("/dev/shm")


class Kind(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


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
def database(kind: Kind, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database that has every table, and no row."""
    if kind is Kind.POSTGRESQL:
        database: Database = request.getfixturevalue("migrated_postgresql")
        clear(database)
        yield database
        return
    folder: Path = request.getfixturevalue("quick_folder")
    database = open_database(folder / "test.sqlite3", pool_size=24)
    yield database
    database.dispose()


@pytest.fixture
def empty_url(kind: Kind, request: pytest.FixtureRequest) -> Iterator[URL]:
    """Where there is a database without any table, for the test alone."""
    if kind is Kind.SQLITE:
        folder: Path = request.getfixturevalue("quick_folder")
        yield sqlite_url(folder / "empty.sqlite3")
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: every commit of SQLite's waits for its disk."""
    if not _IN_MEMORY.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="headstart-test-", dir=_IN_MEMORY))
    yield folder
    shutil.rmtree(folder)
