"""All lives of a run, spread over processes."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from bench.billing.share import Place

Tick = Callable[[int], None]  # how many lives are done by now


@dataclass(slots=True)
class Seen:
    """seconds: for all lives. nano_usd: by how much all that differ do so. first: the number of one that differs, and how."""

    lifecycles: int = 0
    seconds: float = 0.0
    differing: int = 0
    nano_usd: int = 0
    first: tuple[int, str] | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "lifecycles": self.lifecycles,
            "differing": self.differing,
            "difference_nano": self.nano_usd,
            "lifecycles_per_s": self.lifecycles / self.seconds if self.seconds else None,
            "seconds": self.seconds,
        }


def check_all(place: Place, seed: str, count: int, places: Sequence[str | None], tick: Tick) -> Seen:
    """Check lives 0 to count - 1, in one process for each of `places`: a database's address, or None for the memory.

    Raises RuntimeError where a process ends before it is done.
    """
    said: queue.Queue[tuple[int, str | None]] = queue.Queue()
    started, seen, done = time.perf_counter(), Seen(), [0] * len(places)
    with ExitStack() as running:
        for index, url in enumerate(places):
            share = len(range(index, count, len(places)))
            numbers = [str(index), str(len(places)), str(share)]
            process = running.enter_context(
                subprocess.Popen(  # noqa: S603 - ourselves
                    [
                        sys.executable,
                        "-m",
                        "bench.billing.share",
                        place,
                        seed,
                        *numbers,
                        *([url] if url else []),
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            running.callback(process.kill)
            assert process.stdout is not None
            threading.Thread(target=_listen, args=(index, process.stdout, said), daemon=True).start()
        open_count = len(places)
        while open_count:
            index, line = said.get()
            if line is None:
                open_count -= 1
                continue
            _take(json.loads(line), seen, done, index)
            tick(sum(done))
    seen.lifecycles, seen.seconds = sum(done), time.perf_counter() - started
    if not seen.differing and seen.lifecycles < count:
        raise RuntimeError(f"a process of {place} ended early, after {seen.lifecycles} of {count} lives")
    return seen


def _listen(index: int, lines: IO[str], said: "queue.Queue[tuple[int, str | None]]") -> None:
    for line in lines:
        said.put((index, line))
    said.put((index, None))


def _take(line: dict[str, object], seen: Seen, done: list[int], index: int) -> None:
    if "done" in line:
        done[index] = int(str(line["done"]))
        return
    seen.differing += 1
    seen.nano_usd += int(str(line["nano_usd"]))
    number = int(str(line["number"]))
    if seen.first is None or number < seen.first[0]:
        seen.first = number, str(line["what"])
