"""The files in which our side keeps KV on disk, as any program sees them: found, dropped from the page cache, read."""

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from workers.engine.tiers.disk_store import STAGING_SUFFIX
from workers.engine.tiers.kv_file import SUFFIX

LONGEST_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.1


class NoFiles(Exception):  # noqa: N818 - what it is
    """The KV of a cache is not on disk, so that nothing can be said of reading it there."""


def files_below(folder: Path) -> set[Path]:
    """Whole files; those that are being written have another name."""
    return set(folder.rglob(f"*{SUFFIX}"))


def wait_for_files(folder: Path, known: Iterable[Path], least_bytes: int) -> set[Path]:
    """Those beside the known ones, once they have so many bytes and none is being written. Raises NoFiles."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while True:
        found = files_below(folder).difference(known)
        size = sum(path.stat().st_size for path in found)
        if size >= least_bytes and not any(folder.rglob(f"*{STAGING_SUFFIX}")):
            return found
        if time.monotonic() >= deadline:
            raise NoFiles(
                f"{len(found)} KV files of {size:,} bytes are below the data folder {LONGEST_WAIT_SECONDS:.0f} s after "
                f"the cache was created, whose KV takes {least_bytes:,} bytes"
            )
        time.sleep(_POLL_SECONDS)


def drop_from_page_cache(paths: Iterable[Path]) -> None:
    """So that the next read comes from the disk, where there is one: memory file systems keep what they hold."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_and_digest(paths: Iterable[Path]) -> float:
    """Seconds to read them whole and take the SHA-256 of each, in the plainest way."""
    started = time.perf_counter()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, hashlib.sha256)
    return time.perf_counter() - started
