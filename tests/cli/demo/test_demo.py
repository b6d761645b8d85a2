"""`headstart demo --json` from the outside: a real server, a real model, one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_demo_shows_what_it_promises() -> None:
    headstart = Path(sys.executable).with_name("headstart")
    ran = subprocess.run([headstart, "demo", "--json"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    shown = json.loads(line)
    assert 4000 < shown["cached_tokens"] < shown["prompt_tokens"] < 8000
    assert shown["ledger_matches"] is True
    assert shown["bill_nano_usd"] > 0
    assert all(each["answer"] for each in shown["answers"])
    # Far below what it reaches on a quiet machine: this test is about truth, not speed.
    assert shown["cold_ttft_s"] > 3 * shown["hit_ttft_s"]
    assert shown["speedup"] == pytest.approx(shown["cold_ttft_s"] / shown["hit_ttft_s"], rel=0.05)
