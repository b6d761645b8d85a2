from collections.abc import Iterator
from pathlib import Path

import pytest

from core.settings import Settings
from models.session import Database
from prompting.served_model import ServedModel
from tests.api.harness import Server, open_server


@pytest.fixture
def server(
    tmp_path: Path, database: Database, settings: Settings, served_model: ServedModel
) -> Iterator[Server]:
    """A server of its own for each test: what is seen here spans projects."""
    with open_server(tmp_path, database, settings, served_model) as server:
        server.begin()
        yield server
