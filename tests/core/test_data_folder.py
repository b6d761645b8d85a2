import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.data_folder import DataFolder
from core.errors import DataFolderLocked, SettingsInvalid

ROOT = Path(__file__).parents[2]
HOLD = """
import pathlib, sys
from core.data_folder import DataFolder
folder = DataFolder.open(pathlib.Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert folder.database_path.parent == folder.secret_path.parent == tmp_path / "a" / "b"
    folder.close()


def test_a_second_server_is_refused_with_folder_and_process_named(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    for _ in range(2):  # a refusal must not spoil what the next one reads
        with pytest.raises(DataFolderLocked) as caught:
            DataFolder.open(tmp_path)
        assert str(tmp_path) in caught.value.message
        assert f"process {os.getpid()}" in caught.value.message
    folder.close()


def test_a_closed_folder_can_be_opened_again(tmp_path: Path) -> None:
    DataFolder.open(tmp_path).close()
    DataFolder.open(tmp_path).close()


def test_a_killed_server_leaves_the_folder_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"open\n"
        with pytest.raises(DataFolderLocked, match=f"process {server.pid}"):
            DataFolder.open(tmp_path)
        server.kill()
    DataFolder.open(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsInvalid, match="HEADSTART_DATA_DIR") as caught:
            DataFolder.open(path)
        assert str(path) in caught.value.message
