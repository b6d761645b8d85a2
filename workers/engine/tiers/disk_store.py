"""The local-disk tier: a folder of KV files with a budget. Safe to use from several threads; the engine's is none of them.

A file is there whole or not at all: written under a staging name, synced, renamed, and the folder synced. It holds a customer's tokens,
so whatever is not used any more is removed and not kept aside.
"""

import errno
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from time import perf_counter

import torch
from filelock import FileLock, Timeout

from workers.engine.tiers import kv_file
from workers.engine.tiers.errors import DiskFull, FileRejected, Rejection, TierUnavailable
from workers.engine.tiers.kv_file import SUFFIX, KvFile
from workers.engine.tiers.manifest import KvFormat, Manifest
from workers.engine.tiers.rate import Rate

log = logging.getLogger(__name__)

STAGING_SUFFIX = ".staging"
_FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskStore:
    """Files of one KV format in a folder that no other process uses. Nothing is read or made before `scan`.

    read_rate: bytes a second, with verification. incarnation: marks what this process has not finished.
    lock: held from `scan` to `release`, where the folder is not known to be ours alone.
    """

    def __init__(
        self,
        folder: Path,
        kv_format: KvFormat,
        *,
        limit_bytes: int,
        incarnation: str,
        lock: FileLock | None = None,
    ) -> None:
        self.folder = folder
        self.format = kv_format
        self.limit_bytes = limit_bytes
        self.read_rate = Rate()
        self._incarnation = incarnation
        self._numbers = itertools.count()
        self._lock = Lock()
        self._numbered: dict[Path, int] = {}  # the file that has each name, where this process wrote it
        self._sizes: dict[Path, int] = {}  # of all files of ours, also of those that are being written
        self._leftovers: dict[Path, int] = {}  # what could not be removed, and which file of that name it is
        self._rejections: Counter[Rejection] = Counter()
        self._is_available = True
        self._file_lock = lock

    @property
    def used_bytes(self) -> int:
        """More than the limit only after `scan`, where the limit has been lowered."""
        with self._lock:
            return sum(self._sizes.values())

    @property
    def is_available(self) -> bool:
        """Whether the folder did what it was last asked for."""
        return self._is_available

    def rejections(self) -> dict[Rejection, int]:
        """Files that were rejected, and removed, since the start."""
        with self._lock:
            return {reason: self._rejections[reason] for reason in Rejection}

    def scan(self) -> list[KvFile]:
        """At start: make the folder, and list its files by position, so that the first of a path come before the rest.

        Only headers are read; KV is verified when it is wanted. Removes what is rejected, and what an earlier process left unfinished.
        Raises TierUnavailable.
        """
        found: list[KvFile] = []
        with self._failures_named():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(PermissionError):  # it is another user's, who has let us in
                self.folder.chmod(0o700)
                _sync(self.folder.parent)
            self._take_lock()
            paths = sorted(self.folder.iterdir())
        for path in paths:
            if path.suffix == STAGING_SUFFIX and not path.name.startswith(f"{self._incarnation}-"):
                self._try_to_remove(path)
            elif path.suffix == SUFFIX:
                with suppress(FileRejected), self._rejecting(path):
                    found.append(kv_file.inspect(path, self.format))
        with self._lock:
            self._sizes.update((file.path, file.size_bytes) for file in found)
        with self._failures_named():
            _sync(self.folder)
        return sorted(found, key=lambda file: file.manifest.position)

    def write(self, manifest: Manifest, slabs: torch.Tensor, windows: Sequence[tuple[int, int]]) -> KvFile:
        """Store the KV in the arena's `windows` [start, stop), which must not change meanwhile. On return it outlives a power cut.

        Raises DiskFull, or TierUnavailable: nothing of it is left then. ValueError: the engine has a bug.
        """
        if manifest.format != self.format:
            raise ValueError(f"this folder holds KV of {self.format}, not of {manifest.format}")
        size = kv_file.file_bytes(manifest)
        index = next(self._numbers)
        number = index + 1  # 0 has what an earlier process wrote
        path = self.folder / f"{self._incarnation}-{index}{STAGING_SUFFIX}"
        self._claim(path, size, number)
        is_stored = False
        try:
            with self._failures_named(size):
                digest = kv_file.write(path, manifest, slabs, windows)
                path = self._publish(path, self.folder / kv_file.file_name(manifest, digest))
                _sync(self.folder)
            is_stored = True
        finally:
            if not is_stored:
                self._try_to_remove(path, number)
        return KvFile(path, size, manifest, digest, number)

    def read_into(
        self,
        file: KvFile,
        slabs: torch.Tensor,
        windows: Sequence[tuple[int, int]],
        *,
        first_token: int = 0,
    ) -> None:
        """Read and verify the file's KV from `first_token` on, as much as the arena's `windows` [start, stop) have room for.

        Nobody may see the windows before this returns. Raises FileRejected: the file has been counted and removed, the windows hold rubbish.
        """
        started = perf_counter()
        with self._rejecting(file.path, file.number):
            kv_file.read(file, slabs, windows, first_token=first_token)
        self.read_rate.observe(file.size_bytes, perf_counter() - started)

    def delete(self, *files: KvFile) -> None:
        """Remove files, those that are gone included. On return they stay gone. Raises TierUnavailable: then ask again.

        A later file of the same name stays.
        """
        with self._failures_named():
            for file in files:
                self._remove(file.path, file.number)
            _sync(self.folder)

    def remove_leftovers(self) -> None:
        """Try again to remove what was not stored in whole, or was rejected, and could not be removed then."""
        with self._lock:
            leftovers = dict(self._leftovers)
        for path, number in leftovers.items():
            self._try_to_remove(path, number)

    def _take_lock(self) -> None:
        """Two processes in one folder would remove each other's files."""
        try:
            if self._file_lock is not None:
                self._file_lock.acquire()
        except Timeout:
            raise OSError(errno.EBUSY, "another server uses it") from None

    def release(self) -> None:
        """Let another process have the folder, however often it was scanned."""
        if self._file_lock is not None:
            self._file_lock.release(force=True)

    def _claim(self, path: Path, size_bytes: int, number: int) -> None:
        with self._lock:
            used = sum(self._sizes.values())
            if used + size_bytes > self.limit_bytes:
                raise DiskFull(size_bytes, used, self.limit_bytes)
            self._sizes[path], self._numbered[path] = size_bytes, number

    def _publish(self, staging: Path, path: Path) -> Path:
        """Give a whole file its name. Where the name is taken, the other file is the same."""
        with self._lock:
            staging.rename(path)
            self._sizes[path] = self._sizes.pop(staging)
            self._numbered[path] = self._numbered.pop(staging)
            self._leftovers.pop(path, None)  # it is gone: this one has taken its place
        return path

    def _remove(self, path: Path, number: int = 0) -> None:
        with self._lock:
            if self._numbered.get(path, 0) != number:
                return
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            self._sizes.pop(path, None)
            self._numbered.pop(path, None)
            self._leftovers.pop(path, None)

    def _try_to_remove(self, path: Path, number: int = 0) -> None:
        """What cannot be removed now is not counted any more; it is tried again, and by the next start."""
        try:
            self._remove(path, number)
        except OSError as error:
            with self._lock:
                is_known = path in self._leftovers
                self._leftovers[path] = number
                self._sizes.pop(path, None)
            if self._is_available and not is_known:
                log.warning("a KV file that is not used cannot be removed: %s: %s", path.name, error.strerror)

    @contextmanager
    def _rejecting(self, path: Path, number: int = 0) -> Iterator[None]:
        try:
            yield
        except FileRejected as rejected:
            log.warning("KV file %s is not used: %s", path.name, rejected)
            with self._lock:
                self._rejections[rejected.reason] += 1
            self._try_to_remove(path, number)
            raise

    @contextmanager
    def _failures_named(self, needed_bytes: int = 0) -> Iterator[None]:
        """Turn what the system says into DiskFull or TierUnavailable; of an unavailable folder the log speaks once."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL and needed_bytes:
                raise DiskFull(needed_bytes, self.used_bytes - needed_bytes, self.limit_bytes) from error
            if self._is_available:
                log.warning("KV is not kept on disk: %s: %s", self.folder, error.strerror)
            self._is_available = False
            raise TierUnavailable(f"{self.folder}: {error.strerror}") from error
        if not self._is_available:
            log.info("KV is kept on disk again: %s", self.folder)
        self._is_available = True


def folder_lock(folder: Path) -> FileLock:
    """What keeps other processes out, for all threads of this one: a scan that failed is tried again by another."""
    return FileLock(folder / "lock", timeout=0, mode=0o600, thread_local=False)


def _sync(folder: Path) -> None:
    """Make renames and removals in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
