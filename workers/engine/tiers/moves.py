"""Work that takes KV from one tier to another, on two threads of its own: one reads, one writes and removes."""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Deliver = Callable[[Callable[[], None]], object]


class Moves:
    """deliver: has a function called on the engine's thread; False where that has ended. What is given as `end` is called there, with the
    outcome.

    reader, writer: what does the work, in order, if not a thread each.
    """

    def __init__(
        self, deliver: Deliver, reader: Executor | None = None, writer: Executor | None = None
    ) -> None:
        self.count = 0
        self._deliver = deliver
        self._has_stopped = False
        self._unheard: list[Callable[[], None]] = []
        self._reader = reader or ThreadPoolExecutor(1, "kv-read")
        self._writer = writer or ThreadPoolExecutor(1, "kv-write")

    def read(self, work: Callable[[], Result], end: "Callable[[Future[Result]], None]") -> None:
        """Somebody waits for it."""
        self._start(self._reader, work, end)

    def write(self, work: Callable[[], Result], end: "Callable[[Future[Result]], None]") -> None:
        """Nobody waits. Done in the order in which it was asked for, removals included."""
        self._start(self._writer, work, end)

    def stop(self) -> None:
        """Return when nothing is under way any more. What was not begun is not done, and nobody is told.

        What ends after the engine's thread is told here, in its place: a file may have been written that nobody wants.
        """
        self._has_stopped = True
        for executor in (self._reader, self._writer):
            executor.shutdown(wait=True, cancel_futures=True)
        for conclude in self._unheard:
            try:
                conclude()
            except Exception:
                # The engine may have come to its end by such an error: the others are told, too.
                log.exception("the end of a transfer could not be noted")

    def _start(
        self,
        executor: Executor,
        work: Callable[[], Result],
        end: "Callable[[Future[Result]], None]",
    ) -> None:
        if self._has_stopped:
            return
        self.count += 1

        def report(outcome: "Future[Result]") -> None:
            if not outcome.cancelled() and self._deliver(lambda: conclude(outcome)) is False:
                self._unheard.append(lambda: conclude(outcome))

        def conclude(outcome: "Future[Result]") -> None:
            self.count -= 1
            end(outcome)

        executor.submit(work).add_done_callback(report)
