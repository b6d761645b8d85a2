"""Runs pip with its output in a log and a progress bar on the terminal. Standard library only."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

BAR_CELLS = 30
DRAW_SECONDS = 0.3
PLAIN_LINE_SECONDS = 15  # without a terminal: a line now and then, so that a log shows life


class Progress:
    """How far pip is: packages found, then packages unpacked; each is half of the bar."""

    def __init__(self, site_packages: Path | None, count: int) -> None:
        self._site_packages = site_packages
        self._count = max(count, 1)
        self._found: set[str] = set()
        self._already = self._unpacked_count()
        self.doing = ""

    def read(self, line: str) -> None:
        words = line.split()
        if line.startswith("Collecting "):
            self._found.add(words[1])
            self.doing = words[1]
        elif line.startswith("Requirement already satisfied: "):
            self._found.add(words[3])
        elif words[:1] == ["Downloading"]:
            self.doing = " ".join(words[:4])
        elif line.startswith("Installing collected packages"):
            self._found.update(str(number) for number in range(self._count))
            self.doing = "unpacking"

    def fraction(self) -> float:
        found = min(len(self._found), self._count)
        unpacked = min(self._unpacked_count() - self._already, self._count)
        return (found + unpacked) / (2 * self._count)

    def _unpacked_count(self) -> int:
        return sum(1 for _ in self._site_packages.glob("*.dist-info")) if self._site_packages else 0


def run_pip(venv: Path, arguments: list[str], log: Path, label: str, count: int) -> int:
    """pip's exit code. Its output is added to the log."""
    command: list[str | Path] = [venv / "bin" / "python", "-m", "pip", *arguments, "--progress-bar", "off"]
    started = time.monotonic()
    progress = Progress(next(venv.glob("lib/python*/site-packages"), None), count)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        reader = threading.Thread(target=follow, args=(pip.stdout, log, progress))
        reader.start()
        show_until_done(pip, progress, label, started)
        reader.join()
    draw(label, 1.0 if pip.returncode == 0 else progress.fraction(), started, "", last=True)
    return pip.returncode


def follow(output: IO[str], log: Path, progress: Progress) -> None:
    with log.open("a") as file:
        for line in output:
            file.write(line)
            file.flush()
            progress.read(line.strip())


def show_until_done(pip: "subprocess.Popen[str]", progress: Progress, label: str, started: float) -> None:
    pause = DRAW_SECONDS if sys.stdout.isatty() else PLAIN_LINE_SECONDS
    while True:
        try:
            pip.wait(timeout=pause)
        except subprocess.TimeoutExpired:
            draw(label, progress.fraction(), started, progress.doing, last=False)
        else:
            return


def draw(label: str, fraction: float, started: float, doing: str, *, last: bool) -> None:
    seconds = time.monotonic() - started
    if not sys.stdout.isatty():
        print(f"      {label}: {fraction:4.0%} after {seconds:.0f} s {doing}".rstrip(), flush=True)
        return
    full = round(fraction * BAR_CELLS)
    bar = "━" * full + " " * (BAR_CELLS - full)
    line = f"      {label} {bar} {fraction:4.0%} {seconds:4.0f} s  {doing}"
    print(f"\r\x1b[2K{line[:110]}", end="\n" if last else "", flush=True)
