"""The folder of KV files has a budget that holds, and a disk that may be full before: nothing is lost then."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.workers.engine.tiers.samples import failing, names, read_back, sample, store_in, written
from workers.engine.tiers import kv_file
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import DiskFull
from workers.engine.tiers.kv_file import KvFile


class TestBudget:
    def test_a_file_that_does_not_fit_is_refused_with_the_numbers_before_it_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = sample(64)
        size = kv_file.file_bytes(given.manifest)
        store = store_in(tmp_path / "kv", limit_bytes=2 * size)
        store.scan()
        first, _ = written(store, given), written(store, sample(64, seed=2))
        assert store.used_bytes == 2 * size
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing(errno.EIO))
            with pytest.raises(DiskFull) as caught:
                written(store, sample(64, seed=3))
        error = caught.value
        assert (error.needed_bytes, error.used_bytes, error.limit_bytes) == (size, 2 * size, 2 * size)
        store.delete(first)
        written(store, sample(64, seed=3))
        assert store.used_bytes == 2 * size

    def test_the_same_file_twice_counts_once(self, store: DiskStore) -> None:
        assert written(store, sample()).path == written(store, sample()).path
        assert store.used_bytes == sum(path.stat().st_size for path in store.folder.iterdir())

    def test_a_late_removal_leaves_the_file_that_took_the_name_over(self, store: DiskStore) -> None:
        first, second = written(store, sample()), written(store, sample())
        store.delete(first)
        assert torch.equal(read_back(store, second), sample().kv)
        store.delete(second)
        assert store.used_bytes == 0
        assert names(store.folder) == []

    def test_files_that_are_being_written_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = kv_file.file_bytes(sample(64).manifest)
        store = store_in(tmp_path / "kv", limit_bytes=2 * size - 1)
        store.scan()
        fsync, refused = os.fsync, []

        def meanwhile(descriptor: int) -> None:
            with pytest.raises(DiskFull) as caught:
                written(store, sample(64, seed=2))
            refused.append(caught.value)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", meanwhile)
        written(store, sample(64))
        assert len(refused) == 2  # at the file's sync, and at the folder's

    def test_a_limit_lowered_between_two_starts_loses_nothing_and_takes_nothing(
        self, store: DiskStore
    ) -> None:
        file = written(store, sample())
        after = store_in(store.folder, limit_bytes=1)
        assert after.scan() == [file]
        assert after.used_bytes == file.size_bytes
        with pytest.raises(DiskFull):
            written(after, sample(seed=2))
        read_back(after, file)


class TestDiskFull:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    @pytest.mark.parametrize("call", ["open", "writev", "fsync", "rename"])
    def test_nothing_is_kept_of_what_did_not_fit_and_nothing_is_lost(
        self, store: DiskStore, monkeypatch: pytest.MonkeyPatch, call: str, number: int
    ) -> None:
        given = sample(seed=1)
        kept = written(store, given)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(number))
            with pytest.raises(DiskFull) as caught:
                written(store, sample(seed=2))
        assert caught.value.used_bytes == kept.size_bytes
        assert names(store.folder) == [kept.path.name]
        assert store.used_bytes == kept.size_bytes
        assert store.is_available
        assert torch.equal(read_back(store, kept), given.kv)
        written(store, sample(seed=2))

    def test_a_real_disk_that_is_full(self, tiny_disk: Path) -> None:
        store = store_in(tiny_disk / "kv")
        store.scan()
        kept: list[KvFile] = []
        with pytest.raises(DiskFull):
            kept.extend(written(store, sample(64 * 8, seed=seed)) for seed in range(100))
        assert kept
        assert names(store.folder) == sorted(file.path.name for file in kept)
        for seed, file in enumerate(kept):
            assert torch.equal(read_back(store, file), sample(64 * 8, seed=seed).kv)
        store.delete(*kept[:2])
        written(store, sample(64 * 8, seed=99))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system of its own takes a privileged user")
    yield folder
    subprocess.run(["umount", folder], check=True)
