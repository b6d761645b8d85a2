"""The folder of KV files: a start that finds what is right and removes what is not, faults that cost a recompute."""

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.engine.tiers.samples import (
    SHAPE,
    arena,
    failing,
    kv_format,
    manifest_of,
    names,
    raw,
    read_back,
    sample,
    store_in,
    written,
)
from workers.engine.tiers.disk_store import DiskStore, folder_lock
from workers.engine.tiers.errors import FileRejected, Rejection, TierError, TierUnavailable


def rejected(store: DiskStore) -> dict[str, int]:
    return {reason.value: count for reason, count in store.rejections().items() if count}


def change(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_what_is_stored_is_read_again_also_after_a_restart(store: DiskStore) -> None:
    samples = [sample(64, seed=1), sample(128, seed=2), sample(7, seed=3)]
    files = [written(store, each) for each in samples]
    after = store_in(store.folder, incarnation="inc_next")
    found = after.scan()
    assert sorted(found, key=lambda file: file.path) == sorted(files, key=lambda file: file.path)
    for each, file in zip(samples, files, strict=True):
        assert torch.equal(read_back(after, file), each.kv)
    assert after.used_bytes == store.used_bytes == sum(path.stat().st_size for path in store.folder.iterdir())
    assert rejected(after) == {}


def test_a_part_of_a_file_is_read_where_only_that_is_wanted(store: DiskStore) -> None:
    given = sample(128)
    file = written(store, given)
    slabs = arena(64, seed=5)
    store.read_into(file, slabs, [(0, 64)], first_token=64)
    assert torch.equal(raw(slabs, [(0, 64)]), given.kv[:, :, :, 64:])


def test_kv_of_another_format_is_not_taken(store: DiskStore) -> None:
    form = kv_format(torch.float16)
    with pytest.raises(ValueError, match="this folder holds KV of"):
        store.write(manifest_of(64, form=form), arena(64, dtype=torch.float16), [(0, 64)])
    assert (names(store.folder), store.used_bytes) == ([], 0)


def test_files_are_listed_with_the_first_of_a_path_first(store: DiskStore) -> None:
    first = manifest_of(64)
    second = manifest_of(64, parent=first.key, position=64)
    third = manifest_of(5, parent=second.key, position=128)
    for each in (third, first, second):
        store.write(each, arena(64), [(0, len(each.token_ids))])
    assert [file.manifest for file in store_in(store.folder).scan()] == [first, second, third]


def test_folder_and_files_are_for_their_owner_alone(store: DiskStore) -> None:
    file = written(store, sample())
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert file.path.stat().st_mode & 0o777 == 0o600
    store.folder.chmod(0o755)
    store.scan()
    assert store.folder.stat().st_mode & 0o777 == 0o700


class TestDelete:
    def test_removes_file_and_bytes_and_may_be_asked_twice(self, store: DiskStore) -> None:
        first, second = written(store, sample(seed=1)), written(store, sample(seed=2))
        store.delete(first)
        store.delete(first)
        assert names(store.folder) == [second.path.name]
        assert store.used_bytes == second.size_bytes
        store.delete(first, second)
        assert (names(store.folder), store.used_bytes) == ([], 0)

    def test_says_so_where_it_cannot(self, store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
        file = written(store, sample())
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing(errno.EROFS))
            with pytest.raises(TierUnavailable):
                store.delete(file)
        assert store.used_bytes == file.size_bytes
        store.delete(file)
        assert (names(store.folder), store.used_bytes) == ([], 0)

    def test_lets_a_read_under_way_finish(self, store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
        given = sample()
        file = written(store, given)
        readv = os.readv

        def delete_first(*arguments: Any) -> int:
            store.delete(file)
            return readv(*arguments)

        monkeypatch.setattr(os, "readv", delete_first)
        assert torch.equal(read_back(store, file), given.kv)
        monkeypatch.undo()
        with pytest.raises(FileRejected) as caught:
            read_back(store, file)
        assert caught.value.reason == Rejection.UNREADABLE


class TestRejection:
    def test_a_damaged_file_is_counted_and_removed_and_can_be_written_again(self, store: DiskStore) -> None:
        given = sample()
        file = written(store, given)
        change(file.path, file.size_bytes - 70)
        with pytest.raises(FileRejected) as caught:
            read_back(store, file)
        assert caught.value.reason == Rejection.CORRUPT
        assert rejected(store) == {"corrupt": 1}
        assert (names(store.folder), store.used_bytes) == ([], 0)
        assert torch.equal(read_back(store, written(store, given)), given.kv)

    def test_a_start_keeps_what_is_right_and_removes_the_rest(self, store: DiskStore) -> None:
        kept, cut, damaged, renamed = (written(store, sample(seed=seed)) for seed in range(4))
        os.truncate(cut.path, cut.size_bytes - 1)
        change(damaged.path, 100)
        renamed.path.rename(store.folder / f"{bytes(16).hex()}-{renamed.digest.hex()}.kv")
        (store.folder / "rubbish.kv").write_bytes(bytes(1000))
        (store.folder / "folder.kv").mkdir()
        (store.folder / "notes.txt").write_text("not ours")
        after = store_in(store.folder)
        assert after.scan() == [kept]
        assert rejected(after) == {"truncated": 1, "corrupt": 2, "foreign": 1, "unreadable": 1}
        assert names(store.folder) == sorted(["folder.kv", "notes.txt", kept.path.name])
        assert after.used_bytes == kept.size_bytes

    def test_kv_of_other_weights_is_never_used(self, store: DiskStore) -> None:
        """The file is whole, the tokens are the same, and so are folder and name of the model."""
        file = written(store, sample())
        after = store_in(store.folder, form=kv_format(fingerprint="words:one weight changed"))
        assert after.scan() == []
        assert rejected(after) == {"stale": 1}
        assert not file.path.exists()

    def test_kv_of_other_weights_is_not_used_by_a_running_server_either(
        self, store: DiskStore, tmp_path: Path
    ) -> None:
        file = written(store, sample())
        form = kv_format(fingerprint="words:one weight changed")
        other = store_in(tmp_path / "other", form=form)
        other.scan()
        theirs = other.write(manifest_of(3, form=form), arena(5), [(1, 4)])
        file.path.write_bytes(theirs.path.read_bytes())
        with pytest.raises(FileRejected) as caught:
            read_back(store, file)
        assert caught.value.reason == Rejection.STALE

    def test_the_log_names_the_file_and_no_content(
        self, store: DiskStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = written(store, sample())
        os.truncate(file.path, 10)
        with pytest.raises(FileRejected):
            read_back(store, file)
        assert [record.getMessage() for record in caplog.records] == [
            f"KV file {file.path.name} is not used: truncated: it ends within its header"
        ]


class TestStaging:
    def test_what_earlier_processes_left_is_removed_and_what_this_one_writes_is_not(
        self, store: DiskStore
    ) -> None:
        for name in ("inc_dead-0.staging", "inc_this2-0.staging", "inc_this-7.staging"):
            (store.folder / name).write_bytes(b"part of a customer's document")
        assert store.scan() == []
        assert names(store.folder) == ["inc_this-7.staging"]
        assert rejected(store) == {}

    def test_the_name_says_whose_it_is(self, store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str] = []
        fsync = os.fsync

        def look(descriptor: int) -> None:
            seen.extend(names(store.folder))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", look)
        file = written(store, sample())
        assert seen == ["inc_this-0.staging", file.path.name]


def test_a_scan_that_failed_is_tried_again_by_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start scans, and later the engine's thread; the lock was taken before something else went wrong."""
    store = locked_store(tmp_path / "kv")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", failing(errno.EIO))
        with pytest.raises(TierUnavailable):
            store.scan()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(store.scan).result() == []
    with pytest.raises(TierUnavailable):
        locked_store(tmp_path / "kv").scan()
    store.release()
    assert locked_store(tmp_path / "kv").scan() == []


def locked_store(folder: Path) -> DiskStore:
    return DiskStore(folder, kv_format(), limit_bytes=10**9, incarnation="inc_this", lock=folder_lock(folder))


class TestLeftovers:
    """What is of no use, and cannot be removed for a while."""

    def test_they_are_removed_once_that_can_be_done(
        self, store: DiskStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = written(store, sample(seed=1))
        change(file.path, -1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", failing(errno.EROFS))
            patch.setattr(os, "unlink", failing(errno.EROFS))
            with pytest.raises(TierUnavailable):
                written(store, sample(seed=2))
            with pytest.raises(FileRejected):
                read_back(store, file)
            store.remove_leftovers()
            assert len(names(store.folder)) == 2
        store.remove_leftovers()
        assert names(store.folder) == []

    def test_a_later_file_of_the_same_name_stays(
        self, store: DiskStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = sample(seed=1)
        file = written(store, given)
        change(file.path, -1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing(errno.EROFS))
            with pytest.raises(FileRejected):
                read_back(store, file)
        again = written(store, given)
        store.remove_leftovers()
        assert torch.equal(read_back(store, again), given.kv)


class TestUnavailable:
    def test_a_file_in_place_of_the_folder_is_said_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "kv").write_text("in the way")
        store = store_in(tmp_path / "kv")
        for ask in (
            store.scan,
            store.scan,
            lambda: written(store, sample()),
            lambda: written(store, sample()),
        ):
            with pytest.raises(TierUnavailable, match=str(tmp_path / "kv")):
                ask()
        assert not store.is_available
        assert store.used_bytes == 0
        assert len(caplog.records) == 1
        assert (tmp_path / "kv").read_text() == "in the way"

    def test_a_folder_above_that_is_a_file_is_no_different(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("in the way")
        with pytest.raises(TierUnavailable):
            store_in(tmp_path / "data" / "kv").scan()

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.EFBIG])
    @pytest.mark.parametrize("call", ["open", "writev", "fsync", "rename"])
    def test_a_disk_that_fails_leaves_nothing_and_may_work_again(
        self,
        store: DiskStore,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        call: str,
        number: int,
    ) -> None:
        caplog.set_level(logging.INFO)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(number))
            for _ in range(2):
                with pytest.raises(TierUnavailable):
                    written(store, sample())
        assert (store.is_available, names(store.folder), store.used_bytes) == (False, [], 0)
        read_back(store, written(store, sample()))
        assert store.is_available
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]

    def test_what_cannot_be_removed_after_a_failure_takes_no_budget(
        self, store: DiskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with monkeypatch.context() as patch:
            for call in ("writev", "unlink"):
                patch.setattr(os, call, failing(errno.EIO))
            with pytest.raises(TierUnavailable):
                written(store, sample())
        assert store.used_bytes == 0
        assert len(caplog.records) == 1
        after = store_in(store.folder, incarnation="inc_next")
        assert (after.scan(), names(store.folder)) == ([], [])

    def test_a_folder_that_goes_away_costs_its_files_and_nothing_else(
        self, store: DiskStore, tmp_path: Path
    ) -> None:
        file = written(store, sample())
        store.folder.rename(tmp_path / "elsewhere")
        with pytest.raises(FileRejected):
            read_back(store, file)
        with pytest.raises(TierError):
            written(store, sample())
        store.scan()
        written(store, sample())


class TestThreads:
    def test_two_that_write_the_same_file_leave_it_once(self, store: DiskStore) -> None:
        given = sample(64 * 8)
        with ThreadPoolExecutor(4) as threads:
            files = set(threads.map(lambda _: written(store, given).path, range(40)))
        assert names(store.folder) == [path.name for path in files]
        (file,) = store_in(store.folder).scan()
        assert store.used_bytes == file.size_bytes
        assert torch.equal(read_back(store, file), given.kv)

    def test_writes_reads_and_deletes_of_different_files_do_not_meet(self, store: DiskStore) -> None:
        def live(seed: int) -> bool:
            given = sample(64 * (1 + seed % 4), seed=seed)
            file = written(store, given)
            is_right = torch.equal(read_back(store, file), given.kv)
            if seed % 2:
                store.delete(file)
            return is_right

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(live, range(60)))
        found = store_in(store.folder).scan()
        assert len(found) == 30
        assert store.used_bytes == sum(file.size_bytes for file in found)
        assert rejected(store) == {}


def test_the_rate_is_that_of_what_was_read(store: DiskStore) -> None:
    file = written(store, sample(64 * 8))
    before = store.read_rate.per_second
    read_back(store, file)
    after = store.read_rate.per_second
    assert before is None
    assert after is not None
    assert after > 1_000


def test_shapes_of_any_size_fit(tmp_path: Path) -> None:
    """A hundred planes, and rows of two bytes."""
    for layers, kv_heads, head_size in ((10, 5, 8), (1, 1, 1)):
        shape = type(SHAPE)(layers, kv_heads, head_size, 100)
        form = kv_format(torch.float16, shape=shape)
        store = store_in(tmp_path / str(layers), form=form)
        store.scan()
        slabs = arena(64, dtype=torch.float16, shape=shape)
        file = store.write(manifest_of(64, form=form), slabs, [(0, 64)])
        other = torch.zeros_like(slabs)
        store.read_into(file, other, [(0, 64)])
        assert torch.equal(other.view(torch.uint8), slabs.view(torch.uint8))
