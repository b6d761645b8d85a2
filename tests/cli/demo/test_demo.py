"""`headstart demo --json` from the outside: a real server, a real model, one line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.demo.run import HANDBOOK, INSTRUCTION
from prompting.format import PromptFormat
from prompting.messages import Message
from tests.tiny_models import built_in_folder

LONGEST_SECONDS = 900  # half a minute or so where nothing else runs
COMMAND = (str(Path(sys.executable).with_name("headstart")), "demo", "--json")
# To compute the whole document twice, and long answers, takes a minute, and shows no more than a part of it does.
ABOUT_A_PART = """
import sys
from pathlib import Path
from cli.demo import client, run
from cli.main import app

run.HANDBOOK = Path(sys.argv.pop(1))
client.MAX_OUTPUT_TOKENS = 8
app()
"""


@contextmanager
def running_demo(folder: Path, command: Sequence[str] = COMMAND) -> "Iterator[subprocess.Popen[str]]":
    """With its temporary files under `folder`; told to stop on leaving, where it still runs."""
    demo = subprocess.Popen(
        command,
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


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 60)
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    document = tmp_path / "part.txt"
    document.write_text(HANDBOOK.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    command = (sys.executable, "-c", ABOUT_A_PART, str(document), "demo", "--json")
    with running_demo(tmp_path, command) as demo:
        printed, errors = demo.communicate(timeout=LONGEST_SECONDS)
    assert demo.returncode == 0, errors
    (line,) = printed.splitlines()
    shown = json.loads(line)
    assert 700 < shown["cached_tokens"] < shown["prompt_tokens"] < 1200
    assert shown["ledger_matches"] is True
    assert shown["bill_nano_usd"] > 0
    assert all(each["answer"] for each in shown["answers"])
    # Far below what it reaches on a quiet machine: this test is about truth, not speed.
    assert shown["cold_ttft_s"] > 3 * shown["hit_ttft_s"]
    assert shown["speedup"] == pytest.approx(shown["cold_ttft_s"] / shown["hit_ttft_s"], rel=0.05)


def test_its_document_is_long_and_leaves_room_for_answers() -> None:
    messages = [Message("system", INSTRUCTION), Message("user", HANDBOOK.read_text(encoding="utf-8"))]
    prefix = PromptFormat.load(built_in_folder()).prefix(messages)
    assert 4000 < len(prefix.token_ids) < 7800


@pytest.mark.long
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
