"""What is PostgreSQL's own: its address, how its connections are set up, and who may have a database to himself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, func, make_url, select, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from core.errors import DatabaseLocked, SettingsInvalid

_LOCK_MILLISECONDS = 10_000
_DEFAULTS = {"connect_timeout": 10, "application_name": "headstart", "client_encoding": "utf8"}
# The number of our advisory lock; any would do that nobody else uses in this database.
_SOLE_USE = int.from_bytes(b"headstrt", "big")
_SOLE_USE_PATIENCE_SECONDS = 2.0


def postgresql_url(address: str) -> URL:
    """Read an address as PostgreSQL's own programs take it, for the driver that we use; SettingsInvalid if it is none."""
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # both may quote what they could not read, with the password in it
        raise _wrong("it is no URL. Write postgresql://user:password@host:port/database.") from None
    if url.drivername not in {"postgresql", "postgres", "postgresql+psycopg"}:
        raise _wrong("it must begin with postgresql://. Without it, SQLite in the data folder is used.")
    if not url.database:
        raise _wrong("it names no database. Write postgresql://user:password@host:port/database.")
    return url.set(drivername="postgresql+psycopg")


def engine_options(url: URL) -> dict[str, Any]:
    """Give what `create_engine` is to be told; the address itself may say otherwise of a connection."""
    return {
        "isolation_level": "READ COMMITTED",  # writers lock the rows that they read to change them
        "pool_pre_ping": True,  # a server that was restarted has cut the connections that lie waiting
        "connect_args": {name: value for name, value in _DEFAULTS.items() if name not in url.query},
    }


def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = {_LOCK_MILLISECONDS}")
    cursor.close()
    connection.commit()


def check_usable(engine: Engine) -> None:
    """Raise SettingsInvalid unless the database answers and can hold any text."""
    try:
        with engine.connect() as connection:
            encoding = connection.scalar(text("SHOW server_encoding"))
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())
        raise _wrong(f"the database cannot be opened: {reason}") from None
    if encoding != "UTF8":
        raise _wrong(
            f"the database is encoded in {encoding}. Make one with ENCODING 'UTF8' TEMPLATE template0."
        )


@contextmanager
def sole_use(engine: Engine) -> Iterator[None]:
    """Have the database to ourselves, as a server or for a migration; DatabaseLocked if another process has it.

    The lock goes with its connection, however the process ends. A restart of PostgreSQL, or a pooler that changes
    connections between transactions, loses it: it keeps mistakes away, and no more.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not _is_free_soon(connection):
            raise DatabaseLocked(
                f"The database {engine.url.database} is in use by another server or migration. Stop that one, or set "
                "HEADSTART_DATABASE_URL to another database.",
                field="database_url",
            )
        connection.detach()  # so that leaving ends it, where the pool would keep it, and the lock
        yield


def _is_free_soon(connection: Connection) -> bool:
    """Take the lock. PostgreSQL ends the connection of a process that has just ended some moments later than that."""
    give_up_at = time.monotonic() + _SOLE_USE_PATIENCE_SECONDS
    while not connection.scalar(select(func.pg_try_advisory_lock(_SOLE_USE))):
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(0.05)
    return True


def _wrong(what: str) -> SettingsInvalid:
    return SettingsInvalid(f"HEADSTART_DATABASE_URL: {what}", field="database_url")
