"""`headstart demo --json` from the outside: a real server, a real model, one line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LONGEST_SECONDS = 900  # a minute or so where nothing else runs


@contextmanager
def running_demo(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """With its temporary files under `folder`; told to stop on leaving, where it still runs."""
    demo = subprocess.Popen(
        [Path(sys.executable).with_name("headstart"), "demo", "--json"],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield demo
    finally:
        demo.terminate()
        demo.communicate()


@pytest.mark.timeout(LONGEST_SECONDS + 60)
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    with running_demo(tmp_path) as demo:
        printed, errors = demo.communicate(timeout=LONGEST_SECONDS)
    assert demo.returncode == 0, errors
    (line,) = printed.splitlines()
    shown = json.loads(line)
    assert 4000 < shown["cached_tokens"] < shown["prompt_tokens"] < 8000
    assert shown["ledger_matches"] is True
    assert shown["bill_nano_usd"] > 0
    assert all(each["answer"] for each in shown["answers"])
    # Far below what it reaches on a quiet machine: this test is about truth, not speed.
    assert shown["cold_ttft_s"] > 3 * shown["hit_ttft_s"]
    assert shown["speedup"] == pytest.approx(shown["cold_ttft_s"] / shown["hit_ttft_s"], rel=0.05)


def test_a_demo_that_is_told_to_stop_takes_its_server_along(tmp_path: Path) -> None:
    with running_demo(tmp_path) as demo:
        pid_file = wait_for(lambda: next(tmp_path.glob("headstart-demo-*/data/pid"), None))
        server = int(pid_file.read_text())
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(timeout=90) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{server}").exists()
    assert list(tmp_path.glob("headstart-demo-*")) == []


def wait_for(find: Callable[[], Path | None], within_seconds: float = 180) -> Path:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if (found := find()) is not None and found.read_text():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")
