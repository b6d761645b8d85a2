"""Database work of a worker: short units in a bounded number of threads, off the engine thread."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from core.errors import AppError, Internal

log = logging.getLogger(__name__)


class Units:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="unit")
        self._open_count = 0
        self._changed = threading.Condition()

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

    def stop(self) -> None:
        """Finish what was started, and what that starts in turn; then take nothing new."""
        with self._changed:
            self._changed.wait_for(lambda: self._open_count == 0)
        self._pool.shutdown(wait=True)

    def _count(self, change: int) -> None:
        with self._changed:
            self._open_count += change
            self._changed.notify_all()
