from collections.abc import Iterator
from pathlib import Path

import pytest

from models.session import Database
from tests.models.rows import open_database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path / "models.sqlite3")
    yield database
    database.dispose()
