import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.data_folder import database_path
from models.session import Database, sqlite_url
from tests.cli.running import done


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that does not exist yet, named by the environment."""
    folder = tmp_path / "data"
    monkeypatch.setenv("HEADSTART_DATA_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a database and the project "default", to be copied: to make one takes half a second."""
    folder = tmp_path_factory.mktemp("new") / "data"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADSTART_DATA_DIR", str(folder))
        done("migrate")
        done("projects", "create", "default")
    return folder


@pytest.fixture
def data_folder(empty_folder: Path, new_folder: Path) -> Path:
    """A data folder with a database and the project "default"."""
    shutil.copytree(new_folder, empty_folder)
    return empty_folder


@pytest.fixture
def database(data_folder: Path) -> Iterator[Database]:
    database = Database(sqlite_url(database_path(data_folder)), pool_size=1)
    yield database
    database.dispose()
