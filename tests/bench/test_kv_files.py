import threading
from pathlib import Path

import pytest

from bench import kv_files
from workers.engine.tiers.disk_store import STAGING_SUFFIX
from workers.engine.tiers.kv_file import SUFFIX


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_new_whole_files_are_found_wherever_they_lie(tmp_path: Path) -> None:
    old = write(tmp_path / "data" / "kv" / f"old{SUFFIX}", 100)
    new = write(tmp_path / "data" / "kv" / f"new{SUFFIX}", 50)
    write(tmp_path / "data" / "database", 1000)
    assert kv_files.files_below(tmp_path) == {old, new}
    assert kv_files.wait_for_files(tmp_path, {old}, 50) == {new}


def test_it_waits_until_they_are_whole(tmp_path: Path) -> None:
    staging = write(tmp_path / f"a{STAGING_SUFFIX}", 60)
    timer = threading.Timer(0.3, lambda: staging.rename(tmp_path / f"a{SUFFIX}"))
    timer.start()
    assert kv_files.wait_for_files(tmp_path, (), 60) == {tmp_path / f"a{SUFFIX}"}
    timer.join()


def test_none_is_told_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_files, "LONGEST_WAIT_SECONDS", 0.2)
    write(tmp_path / f"a{SUFFIX}", 60)
    with pytest.raises(kv_files.NoFiles, match=r"1 KV files of 60 bytes .* takes 61 bytes"):
        kv_files.wait_for_files(tmp_path, (), 61)


def test_files_are_read_whole_from_the_disk(tmp_path: Path) -> None:
    path = write(tmp_path / f"a{SUFFIX}", 1 << 20)
    kv_files.drop_from_page_cache([path])
    assert kv_files.read_and_digest([path]) > 0
    with pytest.raises(FileNotFoundError):
        kv_files.read_and_digest([tmp_path / "absent"])
