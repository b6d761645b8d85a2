"""The demo's child process: its first line is waited for, and a child that fails is told in words."""

import os
from pathlib import Path

import pytest

from cli.demo.server import read_line, running_server
from core.errors import Unavailable


def test_a_line_is_read_whole_and_no_further() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"address": "x"}\nmore')
    assert read_line(reading, within_seconds=5) == '{"address": "x"}\n'
    assert os.read(reading, 9) == b"more"
    os.close(reading)
    os.close(writing)


def test_silence_ends_the_wait() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"half a line")
    assert read_line(reading, within_seconds=0.05) == ""
    os.close(reading)
    os.close(writing)


def test_a_server_that_cannot_start_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_MODEL", str(tmp_path / "no-such-model"))
    with pytest.raises(Unavailable, match="no-such-model"), running_server(tmp_path):
        pass
