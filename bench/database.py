"""A database as benchmarks and tests need it: with every table, and empty again and again."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, text
from sqlalchemy.orm import Session

import models.tables  # noqa: F401 -- makes every table known to Base
from core.errors import SettingsInvalid
from models.base import Base
from models.postgresql import postgresql_url
from models.schema import current, downgrade, upgrade
from models.session import Database

# The tables that a trigger of ours guards.
_GUARDED = text("SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1")
_TRIGGERS = text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")


def migrate(url: URL) -> None:
    """Make every table."""
    with opened(url) as database:
        upgrade(database)


@contextmanager
def opened(url: URL, pool_size: int = 1) -> Iterator[Database]:
    database = Database(url, pool_size)
    try:
        yield database
    finally:
        database.dispose()


@contextmanager
def borrowed(address: str) -> Iterator[URL]:
    """Somebody's PostgreSQL database, which must be empty, and is again on leaving. Raises SettingsInvalid."""
    url = postgresql_url(address)
    with opened(url) as database:
        database.check_usable()
        if current(database) is not None:
            raise SettingsInvalid(
                f"The database {url.database} holds tables of Headstart's, and this would remove them. Name an empty one.",
                field="database_url",
            )
        try:
            yield url
        finally:
            if current(database) is not None:
                downgrade(database, "base")


def clear(database: Database) -> None:
    """Remove every row, those that the database itself keeps from being removed too."""
    with database.write() as session, unguarded(session):
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())


@contextmanager
def unguarded(session: Session) -> Iterator[None]:
    """Without the triggers that refuse to change the books, until the unit ends or this does."""
    if session.get_bind().dialect.name == "postgresql":
        guarded = session.scalars(_GUARDED).all()
        for table in guarded:
            session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield
        for table in guarded:
            session.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
        return
    triggers = session.execute(_TRIGGERS).all()
    for name, _ in triggers:
        session.execute(text(f"DROP TRIGGER {name}"))
    yield
    for _, statement in triggers:
        session.connection().exec_driver_sql(statement)
