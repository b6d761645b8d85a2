"""SHA-256 of large files, computed once: a file that has not been touched since is not read again.

A file is known by device and inode, and is unchanged while its size, mtime and ctime are. The cache is a JSON file that
may be lost at any time: losing it costs reading the files again.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from workers.engine.loading.progress import Progress, silent

_CHUNK_BYTES = 1 << 20


class DigestCache:
    """Digests that were computed before, kept in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)

    def sha256(self, file: Path, progress: Progress = silent) -> str:
        """Give the file's digest in hex, from the cache where the file is untouched."""
        before = file.stat()
        known = self._known.get(_identity(before))
        if known is not None and known[:-1] == _state(before):
            return str(known[-1])
        digest = sha256_of(file, progress)
        if _state(file.stat()) == _state(before):  # not written while it was read
            self._known[_identity(before)] = [*_state(before), digest]
            self._write()
        return digest

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        merged = {**_read(self._path), **self._known}  # another process may have added its own
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(merged, file, indent=1, sort_keys=True)
        Path(name).replace(self._path)


def sha256_of(file: Path, progress: Progress = silent) -> str:
    """Read the whole file and give its digest in hex."""
    digest, read, size = hashlib.sha256(), 0, max(file.stat().st_size, 1)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            read += len(chunk)
            progress(f"Checking {file.name}", min(read / size, 1.0))
    return digest.hexdigest()


def _identity(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}"


def _state(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: entry for key, entry in content.items() if isinstance(entry, list) and len(entry) == 4}
