from collections.abc import Iterator
from pathlib import Path

import pytest

from models.session import Database
from tests.caching.scene import Scene
from tests.fakes.clock import ManualClock
from tests.models.rows import add_customer, open_database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path / "caching.sqlite3", pool_size=24)
    yield database
    database.dispose()


@pytest.fixture
def scene(database: Database) -> Scene:
    with database.write() as session:
        customer = add_customer(session, "one")
    return Scene(database, ManualClock(), customer)
