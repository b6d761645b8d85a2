"""The unit of work: one transaction, opened and ended here and nowhere else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from models import postgresql
from models.refusals import as_unavailable, hide_values

_BUSY_MILLISECONDS = 10_000


class Database:
    """A pool of connections that hands out units of work.

    Loaded rows stay usable after their unit has ended; nothing changed on them then is stored.
    """

    def __init__(self, url: URL, pool_size: int) -> None:
        self._is_sqlite = url.get_backend_name() == "sqlite"
        # Parameters are what customers sent: they belong into no message and no log.
        self._engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            hide_parameters=True,
            **({} if self._is_sqlite else postgresql.engine_options(url)),
        )
        if self._is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
            reading = self._engine.execution_options(read_only=True)
        else:
            event.listen(self._engine, "connect", postgresql.prepare)
            event.listen(self._engine, "handle_error", hide_values)
            reading = self._engine.execution_options(
                postgresql_readonly=True, isolation_level="REPEATABLE READ"
            )
        self._reads = sessionmaker(reading, expire_on_commit=False)
        self._writes = sessionmaker(self._engine, expire_on_commit=False)

    @property
    def has_one_writer(self) -> bool:
        """Whether each write unit waits for every other, whatever it is about."""
        return self._is_sqlite

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a unit that sees one snapshot of the whole database and cannot change it.

        Raises Unavailable if the database does not answer.
        """
        with _telling_refusals(writing=False), self._reads() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a unit that is committed once, on leaving, or rolled back whole if anything is raised.

        Raises Unavailable if the database does not answer or takes nothing, or if others hold a lock for too long.
        """
        with _telling_refusals(writing=True), self._writes.begin() as session:
            session.connection()  # begins now: on SQLite the lock is held before the first read
            yield session

    def scrub(self) -> bool:
        """Remove from disk what deleted and replaced rows held; False if a reader is in the way: call it again.

        On PostgreSQL that is vacuum's work.
        """
        if not self._is_sqlite:
            return True
        connection = self._engine.raw_connection()  # not a unit of work: a transaction could empty no log
        try:
            cursor = connection.cursor()
            # Old pages stay in the write-ahead log until it is emptied. Writers wait meanwhile: be quick or give up.
            cursor.execute("PRAGMA busy_timeout = 100")
            cursor.execute("PRAGMA query_only = OFF")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            is_blocked = cursor.fetchall()[0][0]  # of: busy, pages in the log, pages moved
            cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        finally:
            connection.close()
        return not is_blocked

    def check_usable(self) -> None:
        """Raise SettingsInvalid where a server that should hold the database does not."""
        if not self._is_sqlite:
            postgresql.check_usable(self._engine)

    @contextmanager
    def sole_use(self) -> Iterator[None]:
        """Keep other servers and migrations away; raises DatabaseLocked where one is there already.

        An SQLite file is kept by the lock on its data folder.
        """
        if self._is_sqlite:
            yield
            return
        self.check_usable()
        with postgresql.sole_use(self._engine):
            yield

    def dispose(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def sqlite_url(path: Path) -> URL:
    """Name an SQLite file as a database URL."""
    return URL.create("sqlite", database=str(path))


@contextmanager
def _telling_refusals(*, writing: bool) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        unavailable = as_unavailable(error, writing=writing)
        if unavailable is None:
            raise
        raise unavailable from error


def _prepare_sqlite(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    # The driver must not open transactions by itself: its deferred ones take the write lock only after
    # reading, and an update that was computed from an outdated read is lost without a word.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {_BUSY_MILLISECONDS}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "recursive_triggers = ON",  # else REPLACE removes rows past the triggers that keep them
        "secure_delete = ON",  # overwrites what is removed, so that gone content is gone from the file too
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    is_read = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if is_read else 'OFF'}")
    connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")
