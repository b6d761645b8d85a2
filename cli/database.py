"""The database of the data folder, opened directly: WAL lets these commands work beside a running server."""

from collections.abc import Iterator
from contextlib import contextmanager

from core.data_folder import database_path
from core.errors import SchemaMismatch
from core.settings import Settings
from models import schema
from models.session import Database, sqlite_url


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Open a database that exists and has the newest schema; SchemaMismatch otherwise."""
    path = database_path(settings.data_dir.expanduser().absolute())
    if not path.is_file():
        raise SchemaMismatch(
            f"There is no database at {path}. Set HEADSTART_DATA_DIR to the server's data folder, or make one: "
            "headstart migrate",
            field="data_dir",
        )
    database = Database(sqlite_url(path), pool_size=1)
    try:
        schema.check(database)
        yield database
    finally:
        database.dispose()
