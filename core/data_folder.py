"""The folder an embedded server keeps everything in: database, secret file, and a lock, so that only one uses it."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from core.errors import DataFolderLocked, SettingsInvalid
from core.settings import PREFIX


class DataFolder:
    """A folder that is ours alone until `close`, or until the process ends, however it ends."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> DataFolder:
        """Make the folder where it is missing, readable by its owner alone, and lock it."""
        path = path.expanduser().absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsInvalid(
                f"{PREFIX}DATA_DIR is {path}, and no folder can be made there ({error.strerror}). Choose another.",
                field="data_dir",
            ) from error
        lock = FileLock(path / "lock", timeout=0, mode=0o600)
        try:
            lock.acquire()
        except Timeout:
            raise DataFolderLocked(
                f"The data folder {path} is in use by {_holder(path)}. "
                "Stop that server, or set HEADSTART_DATA_DIR to another folder.",
                field="data_dir",
            ) from None
        # Beside the lock, not in it: whoever fails to get the lock has opened, and may have emptied, its file.
        pid_path(path).write_text(f"{os.getpid()}\n")
        return cls(path, lock)

    @property
    def database_path(self) -> Path:
        return database_path(self.path)

    @property
    def secret_path(self) -> Path:
        return secret_path(self.path)

    def close(self) -> None:
        """Let another process have the folder."""
        pid_path(self.path).unlink(missing_ok=True)
        self._lock.release()


def database_path(path: Path) -> Path:
    """Say where the database lies: for commands that open it beside a running server."""
    return path / "headstart.sqlite3"


def secret_path(path: Path) -> Path:
    """Say where the root secret lies."""
    return path / "secret"


def pid_path(path: Path) -> Path:
    """Say where the process that has the folder writes its id."""
    return path / "pid"


def _holder(path: Path) -> str:
    try:
        return f"process {int(pid_path(path).read_text())}"
    except (FileNotFoundError, ValueError):  # it is only just starting, or stopping
        return "another process"
