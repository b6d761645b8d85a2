"""The databases that tests run on, and a quick place for their files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


class Kind(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: every commit of SQLite's waits for its disk."""
    folder = Path(tempfile.mkdtemp(prefix="headstart-test-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
