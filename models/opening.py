"""Which database the settings mean, and opening it for one process alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import URL

from core.data_folder import DataFolder, database_path
from core.settings import Settings
from models.postgresql import postgresql_url
from models.session import Database, sqlite_url


@dataclass(frozen=True, slots=True)
class Home:
    """All that a server keeps: its data folder, and its database, which lies in there or elsewhere."""

    folder: DataFolder
    database: Database


def database_url(settings: Settings) -> URL:
    """PostgreSQL where the settings name one, else SQLite in the data folder."""
    if settings.database_url is not None:
        return postgresql_url(settings.database_url.get_secret_value())
    return sqlite_url(database_path(settings.data_dir.expanduser().absolute()))


@contextmanager
def sole_home(settings: Settings, pool_size: int) -> Iterator[Home]:
    """Open folder and database for a server or a migration; DataFolderLocked or DatabaseLocked if another has one."""
    url = database_url(settings)
    folder = DataFolder.open(settings.data_dir)
    try:
        if settings.database_url is None:
            folder.database_path.touch(mode=0o600)  # SQLite gives its other files the mode of this one
        database = Database(url, pool_size)
        try:
            with database.sole_use():
                yield Home(folder, database)
        finally:
            database.dispose()
    finally:
        folder.close()
