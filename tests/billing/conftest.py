from collections.abc import Iterator
from pathlib import Path

import pytest

from models.session import Database
from tests.billing.rows import open_database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path / "billing.db")
    yield database
    database.dispose()
