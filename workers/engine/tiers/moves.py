"""Work that takes KV from one tier to another, on two threads of its own: one reads, one writes and removes."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
Deliver = Callable[[Callable[[], None]], object]


class Moves:
    """deliver: has a function called on the engine's thread. What is given as `end` is called there, with the outcome.

    reader, writer: what does the work, in order, if not a thread each.
    """

    def __init__(
        self, deliver: Deliver, reader: Executor | None = None, writer: Executor | None = None
    ) -> None:
        self.count = 0
        self._deliver = deliver
        self._reader = reader or ThreadPoolExecutor(1, "kv-read")
        self._writer = writer or ThreadPoolExecutor(1, "kv-write")

    def read(self, work: Callable[[], Result], end: "Callable[[Future[Result]], None]") -> None:
        """Somebody waits for it."""
        self._start(self._reader, work, end)

    def write(self, work: Callable[[], Result], end: "Callable[[Future[Result]], None]") -> None:
        """Nobody waits. Done in the order in which it was asked for, removals included."""
        self._start(self._writer, work, end)

    def stop(self) -> None:
        """Return when nothing is under way any more. What was not begun is not done, and nobody is told."""
        for executor in (self._reader, self._writer):
            executor.shutdown(wait=True, cancel_futures=True)

    def _start(
        self,
        executor: Executor,
        work: Callable[[], Result],
        end: "Callable[[Future[Result]], None]",
    ) -> None:
        self.count += 1

        def report(outcome: "Future[Result]") -> None:
            if not outcome.cancelled():
                self._deliver(lambda: conclude(outcome))

        def conclude(outcome: "Future[Result]") -> None:
            self.count -= 1
            end(outcome)

        executor.submit(work).add_done_callback(report)
