import json
import os
from pathlib import Path

import pytest

from workers.engine.loading.digests import DigestCache, sha256_of

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 3_000_000)
    return path


def is_read(file: Path, cache: Path) -> bool:
    """Whether a new process would read the file again."""
    steps: list[float] = []
    digest = DigestCache(cache).sha256(file, lambda _, fraction: steps.append(fraction))
    assert digest == sha256_of(file)
    return bool(steps)


def test_an_untouched_file_is_read_once(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "digests.json"
    assert is_read(file, cache)
    assert not is_read(file, cache)


def test_a_moved_file_is_still_known(file: Path, tmp_path: Path) -> None:
    cache, folder = tmp_path / "digests.json", tmp_path / "a"
    folder.mkdir()
    file = file.rename(folder / "weights")
    assert is_read(file, cache)
    folder.rename(tmp_path / "b")
    assert not is_read(tmp_path / "b" / "weights", cache)


def test_a_touched_file_is_read_again(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "digests.json"
    assert is_read(file, cache)
    with file.open("r+b") as stream:
        stream.write(b"y")
    assert is_read(file, cache)


def test_a_change_that_restores_the_time_is_noticed(file: Path, tmp_path: Path) -> None:
    cache, stat = tmp_path / "digests.json", file.stat()
    assert is_read(file, cache)
    with file.open("r+b") as stream:
        stream.write(b"y")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert is_read(file, cache)


def test_two_processes_keep_each_others_digests(file: Path, tmp_path: Path) -> None:
    cache, other = tmp_path / "digests.json", tmp_path / "other"
    other.write_bytes(b"")
    first, second = DigestCache(cache), DigestCache(cache)
    first.sha256(file)
    assert second.sha256(other) == EMPTY
    assert not is_read(file, cache)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"1:2": 3}', '{"1:2": [1]}'])
def test_a_damaged_cache_costs_reading_again(content: str, file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "digests.json"
    cache.write_text(content)
    assert is_read(file, cache)
    assert not is_read(file, cache)
    assert len(json.loads(cache.read_text())) == 1


def test_progress_ends_at_one(file: Path) -> None:
    steps: list[float] = []
    sha256_of(file, lambda _, fraction: steps.append(fraction))
    assert steps == sorted(steps)
    assert steps[-1] == 1.0
