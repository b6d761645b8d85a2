"""Database work of a worker: short units in a bounded number of threads, off the engine thread."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from core.errors import AppError, Internal, Unavailable

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Units:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="unit")
        self._open_count = 0
        self._changed = threading.Condition()
        self._is_stopping = threading.Event()

    def start(self, unit: Callable[[], None], on_failure: Callable[[AppError], None]) -> None:
        """Run a unit. The edge of the worker: a failure is logged once and told, never lost.

        Raises RuntimeError after stop().
        """

        def run() -> None:
            try:
                unit()
            except AppError as error:
                on_failure(error)
            except Exception as error:
                log.exception("a unit of work failed")
                on_failure(Internal(f"The server failed to record its work: {type(error).__name__}."))
            finally:
                self._count(-1)

        self._count(1)
        self._pool.submit(run)

    def settle(self, unit: Callable[[], None], on_failure: Callable[[AppError], None]) -> None:
        """Run a unit that records what has happened. While the database is away it is tried again, until stop().

        Whoever waits to be told is not told before: an answer whose bill is not written is no answer yet, and a row that
        nobody ends would hold its cache, or its place, until the next start.
        """

        def record() -> None:
            while True:
                try:
                    unit()
                    return
                except Unavailable as error:
                    log.warning("what has happened is recorded as soon as that is possible: %s", error)
                    if self._is_stopping.wait(_RETRY_SECONDS):
                        raise

        self.start(record, on_failure)

    def stop(self) -> None:
        """Finish what was started, and what that starts in turn; then take nothing new."""
        self._is_stopping.set()
        with self._changed:
            self._changed.wait_for(lambda: self._open_count == 0)
        self._pool.shutdown(wait=True)

    def _count(self, change: int) -> None:
        with self._changed:
            self._open_count += change
            self._changed.notify_all()
