"""A private PostgreSQL server for the test run, and databases on it that are made in no time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL

from bench.postgresql import CARELESS, USER, NoServer, find_programs, own_server

# Zone and collation are what a careless query trips over.
_OPTIONS = CARELESS | {
    "autovacuum": "off",
    "max_connections": "200",
    "deadlock_timeout": "100ms",
    "timezone": "America/New_York",
}
_NUMBERS = count()


@dataclass(frozen=True)
class PostgreSQL:
    """A running server, reached through the socket in a folder."""

    folder: Path

    def url(self, name: str) -> URL:
        return URL.create("postgresql+psycopg", USER, database=name, query={"host": str(self.folder)})

    def create(self, *options: str) -> URL:
        """Make an empty database."""
        name = f"test_{next(_NUMBERS)}"
        order = f"CREATE DATABASE {name} OWNER {USER} TEMPLATE template0 {' '.join(options)}"
        self._order(sql.SQL(order))
        return self.url(name)

    def drop(self, url: URL) -> None:
        """Remove a database, whoever is connected to it."""
        self._order(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(str(url.database))))

    def disconnect(self, url: URL) -> None:
        """Cut every connection to a database, as a server that fails over does."""
        self._order(
            sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}").format(
                sql.Literal(url.database)
            )
        )

    def rows(self, url: URL, table: str) -> str:
        """All that a table says, as text; bytes are hexadecimal."""
        with self._connect(str(url.database)) as connection:
            query = sql.SQL("SELECT each::text FROM {} AS each").format(sql.Identifier(table))
            return "\n".join(row[0] for row in connection.execute(query))

    def rewrite(self, url: URL) -> None:
        """Vacuum every table so that its files are written anew, and have the old ones removed."""
        with self._connect(str(url.database)) as connection:
            connection.execute("VACUUM FULL")
            connection.execute("CHECKPOINT")

    def files(self, url: URL) -> list[Path]:
        """The files of a database, its write-ahead log not among them."""
        with self._connect(str(url.database)) as connection:
            connection.execute("CHECKPOINT")
            row = connection.execute(
                "SELECT oid FROM pg_database WHERE datname = current_database()"
            ).fetchone()
        assert row is not None
        return [path for path in (self.folder / "data" / "base" / str(row[0])).iterdir() if path.is_file()]

    def _connect(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(host=str(self.folder), user="postgres", dbname=database, autocommit=True)

    def _order(self, order: sql.SQL | sql.Composed) -> None:
        with self._connect("postgres") as connection:
            connection.execute(order)


@contextmanager
def running_postgresql() -> Iterator[PostgreSQL]:
    """Start a server, and stop it on leaving; its keeper stops it too if this process is killed."""
    try:
        with own_server(_programs(), _OPTIONS) as folder:
            yield PostgreSQL(folder)
    except NoServer as error:
        pytest.fail(str(error), pytrace=False)


def _programs() -> Path:
    found = find_programs()
    if found is None:
        pytest.fail(
            "PostgreSQL is missing, and these tests start a server of it. `make test` installs it where there is "
            "apt-get; elsewhere install your system's package (Debian: postgresql).",
            pytrace=False,
        )
    return found
