from pathlib import Path

import pytest

from tests.workers.engine.tiers.samples import store_in
from workers.engine.tiers.disk_store import DiskStore


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    store = store_in(tmp_path / "kv")
    assert store.scan() == []
    return store
