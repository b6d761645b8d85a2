"""The database of the settings, opened directly: these commands work beside a running server."""

from collections.abc import Iterator
from contextlib import contextmanager

from core.data_folder import database_path
from core.errors import SchemaMismatch
from core.settings import Settings
from models import schema
from models.opening import database_url
from models.session import Database


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Open a database that exists and has the newest schema; SchemaMismatch otherwise."""
    if not exists(settings):
        raise SchemaMismatch(
            f"There is no database in {settings.data_dir.expanduser().absolute()}. Set HEADSTART_DATA_DIR to the "
            "server's data folder, or make one: headstart migrate",
            field="data_dir",
        )
    with open_as_it_is(settings) as database:
        schema.check(database)
        yield database


@contextmanager
def open_as_it_is(settings: Settings) -> Iterator[Database]:
    """Open a database that exists, whatever its schema."""
    database = Database(database_url(settings), pool_size=1)
    try:
        database.check_usable()
        yield database
    finally:
        database.dispose()


def exists(settings: Settings) -> bool:
    """Whether there is something to open: SQLite would make a file that is missing."""
    return (
        settings.database_url is not None
        or database_path(settings.data_dir.expanduser().absolute()).is_file()
    )
