"""A server's folder and database: where the settings put them, and nobody else's while it has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import DatabaseLocked, DataFolderLocked, SettingsInvalid
from core.settings import Settings, load_settings
from models.opening import database_url, sole_home
from models.session import sqlite_url
from tests.postgresql import PostgreSQL


@pytest.fixture
def address(postgresql: PostgreSQL) -> Iterator[str]:
    url = postgresql.create()
    yield url.render_as_string(hide_password=False)
    postgresql.drop(url)


def settings(folder: Path, address: str | None = None) -> Settings:
    return load_settings(data_dir=folder, database_url=address)


def test_without_an_address_the_database_is_a_file_that_is_its_owners_alone(tmp_path: Path) -> None:
    with sole_home(settings(tmp_path), pool_size=1) as home:
        assert home.folder.database_path.stat().st_mode & 0o777 == 0o600
        assert database_url(settings(tmp_path)) == sqlite_url(home.folder.database_path)
        with pytest.raises(DataFolderLocked), sole_home(settings(tmp_path), pool_size=1):
            pass


def test_with_an_address_only_secret_and_lock_lie_in_the_folder(tmp_path: Path, address: str) -> None:
    with sole_home(settings(tmp_path, address), pool_size=1) as home:
        assert not home.folder.database_path.exists()
        with home.database.write():
            pass


def test_one_database_serves_one_folder_at_a_time(tmp_path: Path, address: str) -> None:
    one, two = settings(tmp_path / "one", address), settings(tmp_path / "two", address)
    with sole_home(one, pool_size=1):
        with pytest.raises(DatabaseLocked, match="HEADSTART_DATABASE_URL"), sole_home(two, pool_size=1):
            pass
        with pytest.raises(DataFolderLocked), sole_home(one, pool_size=1):
            pass
    with sole_home(two, pool_size=1):
        pass


def test_a_database_that_cannot_be_opened_leaves_the_folder_free(tmp_path: Path) -> None:
    nowhere = settings(tmp_path, "postgresql://me:word@/books?host=/nowhere")
    with pytest.raises(SettingsInvalid, match="/nowhere") as caught, sole_home(nowhere, pool_size=1):
        pass
    assert "word" not in caught.value.message
    with sole_home(settings(tmp_path), pool_size=1):
        pass


def test_an_address_is_shown_by_no_setting() -> None:
    shown = load_settings(database_url="postgresql://me:word@host/books")
    assert "word" not in f"{shown} {shown!r} {shown.model_dump_json()}"
